#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/operator_call.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "intercept/acting/autograd_front.h"
#include "intercept/acting/bridge.h"
#include "intercept/acting/wrapper.h"
#include "intercept/engine_front.h"

namespace tessera::intercept {
namespace {

/// Of a marked tensor. Shallow copies share it, so what `detach()` returns is marked too.
struct ActingMark : c10::BackendMeta {
  ActingMark(ActingDataPtr its_data, at::Tensor its_part, c10::intrusive_ptr<c10::BackendMeta> meta_before)
      : data(std::move(its_data)), part(std::move(its_part)), before(std::move(meta_before)) {}
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>& mark) const override {
    return mark;
  }
  ActingDataPtr data;
  at::Tensor part;                              // with the bytes; undefined: the marked tensor has them
  c10::intrusive_ptr<c10::BackendMeta> before;  // a tensor has one slot for them
};

ActingMark* mark_of(const c10::TensorImpl& impl) {
  return dynamic_cast<ActingMark*>(const_cast<c10::TensorImpl&>(impl).get_backend_meta());
}

/// A derived class may name protected members.
struct Members : c10::TensorImpl {
  static auto keys_member() { return &Members::key_set_; }
  static auto storage_member() { return &Members::storage_; }
  static auto refuse_access_member() { return &Members::set_storage_access_should_throw; }
};

/// Note [Marks of several kinds]
/// A tensor may be marked by one kind over another: a pipeline marks what tensor parallelism has cut. The outer mark
/// holds the one before it. Operators are the outer kind's, and what it computes with is a tensor with the marks below.
/// The part, if there is one, is of the outermost mark that has one.
ActingMark* mark_below(const ActingMark& mark) { return dynamic_cast<ActingMark*>(mark.before.get()); }

const ActingMark* mark_with_part(const at::Tensor& tensor) {
  const ActingMark* mark = acts(tensor) ? mark_of(*tensor.unsafeGetTensorImpl()) : nullptr;
  while (mark && !mark->part.defined()) mark = mark_below(*mark);
  return mark;
}

void set_mark(c10::TensorImpl& impl, ActingDataPtr data, at::Tensor part) {
  auto before = impl.get_backend_meta_intrusive_ptr();
  impl.set_backend_meta(c10::make_intrusive<ActingMark>(std::move(data), std::move(part), std::move(before)));
  (impl.*Members::keys_member()) = impl.key_set().add(kActingKey);
}

const ActingKind* outermost_kind(OperatorCall& call) {
  const ActingKind* outermost = nullptr;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (!acts(tensor)) return {};
    const ActingKind& kind = acting_data(tensor)->kind();
    if (!outermost || kind.level() > outermost->level()) outermost = &kind;
    return {};
  });
  return outermost;
}

/// Operators about the tensor itself, which are the same for all kinds. False: it is none of them.
bool call_about_itself(OperatorCall& call) {
  if (call.name() == "aten::_has_compatible_shallow_copy_type") {
    call.return_value(is_wrapper(call.tensor(0)) == is_wrapper(call.tensor(1)));
    return true;
  }
  if (call.name() == "aten::detach_") {
    const at::Tensor tensor = call.tensor(0);
    if (Wrapper* const wrapper = Wrapper::of(tensor)) {
      wrapper->set(wrapper->inner().detach(), tensor.sizes(), tensor.strides());
      if (auto* const meta = torch::autograd::impl::get_autograd_meta(tensor)) {
        meta->set_requires_grad(false, wrapper);
        meta->grad_fn_.reset();
        meta->output_nr_ = 0;
      }
    } else {
      const c10::impl::ExcludeDispatchKeyGuard plain(kActingKey);
      tensor.detach_();
    }
    call.return_value(tensor);
    return true;
  }
  return false;
}

void call_acting(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  OperatorCall call(op, *stack);
  if (call_about_itself(call)) return;
  const ActingKind* const kind = outermost_kind(call);
  if (!kind) throw InternalError(call.name() + " was dispatched as if a tensor acted, and none does");
  kind->call(call);
}

/// The kernel of the dispatch key, and the fronts of autograd. They belong to the process, as the dispatch table does.
void install() {
  // Never destroyed, as in DeferredInit.
  alignas(torch::Library) static std::byte memory[sizeof(torch::Library)];
  static const bool is_installed = [] {
    auto* const library = new (memory) torch::Library(torch::Library::IMPL, "_", kActingKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&call_acting>());
    AutogradFront::install();
    return true;
  }();
  static_cast<void>(is_installed);
  EngineFront::install();
}

void lead_to_marked(at::Tensor& alias, const at::Tensor& marked) {
  if (!marked.requires_grad() || !at::GradMode::is_enabled()) return;
  torch::autograd::create_gradient_edge(alias, c10::make_intrusive<ToMarked>(marked));
}

/// A tensor with the marks below the outermost one, of the same bytes.
at::Tensor without_outer_mark(const at::Tensor& marked, const ActingMark& mark) {
  c10::TensorImpl* const impl = marked.unsafeGetTensorImpl();
  // Shares the bytes, the version counter and the metadata, and so the marks.
  at::Tensor alias(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
  alias.unsafeGetTensorImpl()->set_backend_meta(mark.before);
  lead_to_marked(alias, marked);
  return alias;
}

/// A tensor that is as if it were not marked by the outermost kind, with the same bytes and version counter.
at::Tensor alias_of(const at::Tensor& marked) {
  const ActingMark& mark = *mark_of(*marked.unsafeGetTensorImpl());
  if (!mark.part.defined() && mark_below(mark)) return without_outer_mark(marked, mark);
  const at::Tensor& bytes = mark.part.defined() ? mark.part : marked;
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(bytes.storage()),
                                                              marked.key_set().remove(kActingKey), marked.dtype());
  c10::TensorImpl* const impl = alias.unsafeGetTensorImpl();
  impl->set_storage_offset(bytes.storage_offset());
  impl->set_sizes_and_strides(bytes.sizes(), bytes.strides());
  // In InferenceMode nothing counts writes.
  if (!alias.is_inference()) impl->set_version_counter(marked.unsafeGetTensorImpl()->version_counter());
  if (marked.requires_grad() && at::GradMode::is_enabled()) {
    auto node = mark.part.defined() ? c10::make_intrusive<ToMarked>(marked, mark.data, bytes.strides())
                                    : c10::make_intrusive<ToMarked>(marked);
    torch::autograd::create_gradient_edge(alias, std::move(node));
  }
  return alias;
}

/// Says that a wrapper requires a gradient when its inner tensor does. The node that leads there is made when somebody
/// asks for it: few do, since operators compute with inner tensors.
struct WrapperMeta : torch::autograd::AutogradMeta {
  explicit WrapperMeta(const Wrapper& its_wrapper) : wrapper(its_wrapper) {}
  bool requires_grad() const override {
    return AutogradMeta::requires_grad() || (wrapper.is_joined() && wrapper.inner().requires_grad());
  }
  const Wrapper& wrapper;
};

}  // namespace

Wrapper::Wrapper(at::Tensor inner, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides)
    : TensorImpl(inner.key_set().add(kActingKey).remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative),
                 inner.dtype(), inner.device()),
      inner_(std::move(inner)),
      data_(std::move(data)) {
  set_storage_access_should_throw();
  if (data_->kind().hides_contiguity()) set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  set_sizes(sizes, strides);
  share_version();
  set_autograd_meta(std::make_unique<WrapperMeta>(*this));
}

Wrapper* Wrapper::of(const at::TensorBase& tensor) {
  return acts(tensor) ? dynamic_cast<Wrapper*>(tensor.unsafeGetTensorImpl()) : nullptr;
}

void Wrapper::release_resources() {
  // A hook of the inner tensor may refer to this one, though weakly: without this neither would be freed.
  inner_.reset();
  bridge_.reset();
  TensorImpl::release_resources();
}

void Wrapper::set_sizes(at::IntArrayRef sizes, at::IntArrayRef strides) {
  sizes_and_strides_.set_sizes(sizes);
  sizes_and_strides_.set_strides(strides);
  refresh_numel();
  refresh_contiguous();
}

void Wrapper::set(at::Tensor inner, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const auto new_sizes = sizes.vec();  // they may be this tensor's own
  const auto new_strides = strides.vec();
  inner_ = std::move(inner);
  entered_.reset();
  set_sizes(new_sizes, new_strides);
  if (!autograd_meta()) set_autograd_meta(std::make_unique<WrapperMeta>(*this));
  share_version();
}

void Wrapper::share_version() {
  if (is_inference() || inner_.is_inference()) return;
  set_version_counter(inner_.unsafeGetTensorImpl()->version_counter());
}

bool Wrapper::is_joined() const {
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(autograd_meta());
  if (!meta) return true;  // LibTorch takes it away from a tensor that begins anew
  if (meta->grad_fn_) return meta->grad_fn_ == bridge_;
  return !meta->requires_grad_ || inner_.requires_grad();  // the flag alone makes no leaf of a tensor with a history
}

void Wrapper::join() {
  if (!inner_.requires_grad()) return;
  const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(inner_);
  if (bridge_ && bridge_->next_edge(0) == edge) return;
  bridge_ = c10::make_intrusive<Bridge>(edge, data_);
  at::Tensor self(c10::intrusive_ptr<TensorImpl>::unsafe_reclaim_from_nonowning(this));
  torch::autograd::create_gradient_edge(self, bridge_);
}

void Wrapper::lead_to_inner() {
  auto* const meta = static_cast<torch::autograd::AutogradMeta*>(autograd_meta());
  if (!inner_.requires_grad() || !meta) return;
  if (meta->grad_fn_ != bridge_) meta->grad_fn_.reset();
  join();
}

at::Tensor Wrapper::entered() {
  if (auto alive = entered_.lock()) return at::Tensor(std::move(alive));
  at::Tensor self(c10::intrusive_ptr<TensorImpl>::unsafe_reclaim_from_nonowning(this));
  auto node = c10::make_intrusive<Return>(torch::autograd::impl::gradient_edge(self), data_, self.is_leaf());
  at::Tensor inner = inner_.detach();
  torch::autograd::create_gradient_edge(inner, std::move(node));
  if (self.is_leaf()) {
    entered_ = inner.getIntrusivePtr();
    return inner;
  }
  // From now on its history is that of the inner tensor, which begins with the custom function.
  inner_ = std::move(inner);
  bridge_ = nullptr;
  static_cast<torch::autograd::AutogradMeta*>(autograd_meta())->grad_fn_.reset();
  join();
  return inner_;
}

c10::intrusive_ptr<c10::TensorImpl> Wrapper::copy(c10::VariableVersion version, bool allow_change) const {
  auto copied = c10::make_intrusive<Wrapper>(inner_.detach(), data_, sizes(), strides());
  copied->set_version_counter(std::move(version));
  copied->set_allow_tensor_metadata_change(allow_change);
  return copied;
}

c10::intrusive_ptr<c10::TensorImpl> Wrapper::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                     bool allow_tensor_metadata_change) const {
  return copy(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> Wrapper::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                     bool allow_tensor_metadata_change) const {
  return copy(std::move(version_counter), allow_tensor_metadata_change);
}

void Wrapper::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  const auto& from = static_cast<const Wrapper&>(*other);
  inner_ = from.inner_.detach();
  data_ = from.data_;
  set_sizes(from.sizes(), from.strides());
}

at::Tensor make_acting(at::Tensor inner, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides) {
  install();
  return at::detail::make_tensor<Wrapper>(std::move(inner), std::move(data), sizes, strides);
}

void mark_acting(const at::Tensor& tensor, ActingDataPtr data) {
  install();
  if (is_wrapper(tensor)) throw InternalError("a tensor that stands for another one is to be marked");
  set_mark(*tensor.unsafeGetTensorImpl(), std::move(data), {});
}

void mark_part(const at::Tensor& tensor, at::Tensor part, ActingDataPtr data, at::IntArrayRef sizes,
               at::IntArrayRef strides) {
  install();
  if (is_wrapper(tensor)) throw InternalError("a tensor that stands for another one is to be marked as a part");
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  // What another kind had as its part is no more.
  if (ActingMark* const below = acts(tensor) ? mark_of(impl) : nullptr) below->part = at::Tensor();
  impl.set_sizes_and_strides(sizes, strides, 0);
  (impl.*Members::storage_member()) = c10::Storage();
  (impl.*Members::refuse_access_member())();
  set_mark(impl, std::move(data), part.requires_grad() ? part.detach() : std::move(part));
}

at::Tensor make_part(at::Tensor part, ActingDataPtr data, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor marked = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(part.key_set()).remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative),
      part.dtype(), part.device());
  mark_part(marked, std::move(part), std::move(data), sizes, strides);
  return marked;
}

at::Tensor held_part(const at::Tensor& tensor) {
  if (const Wrapper* const wrapper = Wrapper::of(tensor)) return wrapper->inner().detach();
  const ActingMark* const mark = mark_with_part(tensor);
  return mark ? mark->part : tensor.detach();
}

at::IntArrayRef held_sizes(const at::Tensor& tensor) {
  if (const Wrapper* const wrapper = Wrapper::of(tensor)) return wrapper->inner().sizes();
  const ActingMark* const mark = mark_with_part(tensor);
  return mark ? mark->part.sizes() : tensor.sizes();
}

bool holds_part(const at::Tensor& tensor) { return mark_with_part(tensor) != nullptr; }

at::Tensor gradient_part(const at::Tensor& tensor, const at::Tensor& gradient) {
  if (!gradient.defined() || !holds_part(tensor)) return gradient;
  if (holds_part(gradient)) return held_part(gradient);
  const at::NoGradGuard no_grad;
  const ActingDataPtr data = acting_data(tensor);
  return data->kind().inner_gradient(gradient.detach(), *data);
}

void set_gradient_part(const at::Tensor& tensor, at::Tensor part) {
  tensor.mutable_grad() =
      part.defined() ? make_part(std::move(part), acting_data(tensor), tensor.sizes(), tensor.strides()) : at::Tensor();
}

void unmark_acting(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  ActingMark* const mark = acts(tensor) ? mark_of(*impl) : nullptr;
  if (!mark) return;
  if (mark->part.defined()) throw InternalError("a tensor that holds a part is to be an ordinary one");
  const bool acts_still = mark_below(*mark) != nullptr;
  auto before = mark->before;  // setting it drops the mark
  impl->set_backend_meta(std::move(before));
  if (!acts_still) (impl->*Members::keys_member()) = impl->key_set().remove(kActingKey);
}

void unmark_part(const at::Tensor& tensor, const at::Tensor& whole) {
  if (!holds_part(tensor)) throw InternalError("a tensor that holds no part is to be whole");
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  auto before = mark_of(*impl)->before;  // setting it drops the mark
  impl->set_backend_meta(before);
  if (ActingMark* const below = dynamic_cast<ActingMark*>(before.get())) {
    below->part = whole;
    return;
  }
  (impl->*Members::keys_member()) = impl->key_set().remove(kActingKey);
  at::Tensor(tensor).set_data(whole);
  impl->set_backend_meta(std::move(before));
}

ActingDataPtr acting_data(const at::Tensor& tensor) {
  if (!acts(tensor)) return {};
  if (const ActingMark* const mark = mark_of(*tensor.unsafeGetTensorImpl())) return mark->data;
  const Wrapper* const wrapper = Wrapper::of(tensor);
  if (!wrapper) throw InternalError("a tensor has the dispatch key of those that act, and is none of them");
  return wrapper->data();
}

ActingDataPtr acting_data_below(const at::Tensor& tensor) {
  const ActingMark* const mark = acts(tensor) ? mark_of(*tensor.unsafeGetTensorImpl()) : nullptr;
  const ActingMark* const below = mark ? mark_below(*mark) : nullptr;
  return below ? below->data : ActingDataPtr();
}

at::Tensor innermost(const at::Tensor& tensor) {
  at::Tensor found = tensor;
  while (const Wrapper* const wrapper = Wrapper::of(found)) found = wrapper->inner();
  if (const ActingMark* const mark = mark_with_part(found)) return mark->part;
  return found;
}

at::Tensor ActingKind::plain(const at::Tensor& /*wrapper*/) const {
  throw InternalError("a " + name() + " was to be a tensor that does not act");
}

at::Tensor plain_of(const at::Tensor& tensor) {
  const ActingDataPtr data = acting_data(tensor);
  return data ? data->kind().plain(tensor) : tensor;
}

ActingDataPtr acting_data(const at::Tensor& tensor, const ActingKind& kind) {
  ActingDataPtr data = acting_data(tensor);
  return data && &data->kind() == &kind ? std::move(data) : ActingDataPtr();
}

bool is_wrapper(const at::Tensor& tensor) { return Wrapper::of(tensor) != nullptr; }

bool is_elsewhere(const at::Tensor& tensor) {
  const ActingDataPtr data = acting_data(tensor);
  return data && data->kind().is_elsewhere(*data);
}

at::Tensor inner_of(const at::Tensor& acting) {
  Wrapper* const wrapper = Wrapper::of(acting);
  if (!wrapper) return alias_of(acting);
  if (wrapper->is_joined() || !at::GradMode::is_enabled() || !wrapper->has_history()) return wrapper->inner();
  return wrapper->entered();
}

at::Tensor inner_for_write(const at::Tensor& acting) {
  torch::autograd::check_inplace(acting, at::GradMode::is_enabled());
  at::Tensor inner = inner_of(acting);
  // A tensor that data() gives has a count of writes of its own. That of the part counts all of them.
  const ActingMark* const mark = is_wrapper(acting) ? nullptr : mark_of(*acting.unsafeGetTensorImpl());
  if (mark && mark->part.defined()) mark->part.unsafeGetTensorImpl()->bump_version();
  if (at::GradMode::is_enabled() && inner.is_view()) {
    const auto& node = inner._base().grad_fn();
    const auto* const entry = dynamic_cast<const Return*>(node.get());
    TORCH_CHECK(!entry || !entry->leads_to_leaf(),
                "a view of a leaf Variable that requires grad is being used in an in-place operation.");
  }
  return inner;
}

bool has_own_history(const at::Tensor& tensor) {
  const Wrapper* const wrapper = Wrapper::of(tensor);
  return wrapper && !wrapper->is_joined();
}

void set_inner(const at::Tensor& wrapper, at::Tensor inner, at::IntArrayRef sizes, at::IntArrayRef strides) {
  Wrapper* const impl = Wrapper::of(wrapper);
  if (!impl) throw InternalError("only a wrapper gets another inner tensor");
  impl->set(std::move(inner), sizes, strides);
}

void become(const at::Tensor& wrapper, const at::Tensor& changed) {
  Wrapper* const impl = Wrapper::of(wrapper);
  const Wrapper* const other = Wrapper::of(changed);
  if (!impl || !other) throw InternalError("only a wrapper becomes another one");
  impl->set_data(other->data());
  impl->set(other->inner(), changed.sizes(), changed.strides());
}

}  // namespace tessera::intercept
