#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>

#include <c10/core/TensorImpl.h>

#include <sstream>
#include <utility>

namespace tessera {
namespace {

/// A tensor has one place for such marks: this one keeps what was there before.
struct SliceMark : c10::BackendMeta {
  SliceMark(Slice of_tensor, c10::intrusive_ptr<c10::BackendMeta> others)
      : slice(std::move(of_tensor)), rest(std::move(others)) {}
  Slice slice;
  c10::intrusive_ptr<c10::BackendMeta> rest;
};

const SliceMark* mark_of(const at::Tensor& tensor) {
  return dynamic_cast<const SliceMark*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

/// TensorImpl lets only its heirs change its keys.
struct KeysOf : c10::TensorImpl {
  static c10::DispatchKeySet& in(c10::TensorImpl& impl) { return impl.*&KeysOf::key_set_; }
};

}  // namespace

Slice global_slice(const at::Tensor& tensor) {
  const SliceMark* const mark = mark_of(tensor);
  return mark ? mark->slice : Slice::whole(tensor.sizes().vec());
}

void set_global_slice(const at::Tensor& tensor, const Slice& slice) {
  if (!slice.takes_all_selected() || slice.selected_shape() != tensor.sizes().vec()) {
    std::ostringstream text;
    text << "a tensor of the shape " << tensor.sizes() << " is not " << slice.text();
    throw ConfigError(text.str());
  }
  const SliceMark* const before = mark_of(tensor);
  auto rest = before ? before->rest : tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<SliceMark>(slice, std::move(rest)));
}

void set_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  auto marks = impl.get_backend_meta_intrusive_ptr();
  KeysOf::in(impl) = memory.unsafeGetTensorImpl()->key_set();  // or who stands behind a key would be asked
  at::Tensor(tensor).set_data(memory);
  if (marks) impl.set_backend_meta(std::move(marks));
  KeysOf::in(impl) = keys;
}

}  // namespace tessera
