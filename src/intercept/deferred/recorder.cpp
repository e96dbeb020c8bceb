#include "intercept/deferred/recorder.h"

#include <tessera/core/error.h>
#include <tessera/intercept/random_draws.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::intercept {
namespace {

constexpr const char* kWhyNoBytes =
    "this tensor was made under tessera::DeferredInit and has no values yet. fully_shard(model, ...) computes those of "
    "a "
    "model's parameters; tessera::materialize(tensor) computes them in place";

using Owner = std::shared_ptr<History>;

void delete_owner(void* owner) { delete static_cast<Owner*>(owner); }

at::Generator copied(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.clone();
}

void require_unchanged(const Call& call) {
  for (const auto& [tensor, version] : call.held) {
    if (tensor.unsafeGetTensorImpl()->version_counter().current_version() == version) continue;
    throw ConfigError(
        "a tensor that " + call.op.schema().name() +
        " read under tessera::DeferredInit has changed since: leave it as it is until the model is sharded");
  }
}

/// The input as it was at the time of the call, in memory of its own.
at::Tensor computed(const Call::Past& past) {
  auto* const allocator = c10::GetCPUAllocator();
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), past.num_bytes, allocator->allocate(past.num_bytes), allocator, true));
  run_again(storage, past.history->calls, past.num_calls);
  return past.place.on(storage);
}

torch::jit::Stack inputs_of(const Call& call, const c10::Storage& storage) {
  torch::jit::Stack stack = call.inputs;
  for (const auto& [position, place] : call.own) stack[position] = place.on(storage);
  for (const Call::Past& past : call.past) {
    c10::IValue& input = stack[past.position];
    if (!past.element) {
      input = computed(past);
      continue;
    }
    // In a copy of the list: the recorded one stays as it is.
    std::vector<at::Tensor> list = input.toTensorVector();
    list[*past.element] = computed(past);
    input = c10::IValue(std::move(list));
  }
  if (call.generator) stack[call.generator_position] = copied(*call.generator);
  return stack;
}

}  // namespace

Place Place::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.scalar_type()};
}

at::Tensor Place::on(const c10::Storage& storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU}),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

std::shared_ptr<History> history_of(const c10::Storage& storage) {
  auto* const impl = storage.unsafeGetStorageImpl();
  if (impl == nullptr) return nullptr;
  auto* const owner = impl->_mutable_data_ptr_no_checks().cast_context<Owner>(&delete_owner);
  return owner == nullptr ? nullptr : *owner;
}

void defer(const c10::Storage& storage) {
  auto* const impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap({nullptr, new Owner(std::make_shared<History>()), &delete_owner, c10::Device(c10::kCPU)});
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(kWhyNoBytes);
}

c10::DataPtr bytes_for(const c10::Storage& storage) { return c10::GetCPUAllocator()->allocate(storage.nbytes()); }

LentBytes::LentBytes(const c10::Storage& storage, c10::DataPtr bytes) : storage_(storage) {
  auto* const impl = storage_.unsafeGetStorageImpl();
  history_ = std::move(impl->_mutable_data_ptr_no_checks());
  impl->clear_data_ptr_access_error_msg_();
  impl->set_data_ptr_noswap(std::move(bytes));
}

LentBytes::~LentBytes() {
  if (keeps_) return;
  auto* const impl = storage_.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(history_));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(kWhyNoBytes);
}

void LentBytes::fill() const {
  const auto& calls = (*history_.cast_context<Owner>(&delete_owner))->calls;
  run_again(storage_, calls, calls.size());
}

void run_again(const c10::Storage& storage, const std::vector<Call>& calls, std::size_t num_calls) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard for_real(c10::DispatchKey::DeferredInit);
  const auto end = calls.begin() + static_cast<std::ptrdiff_t>(std::min(num_calls, calls.size()));
  // Calls before the last one that overwrites all of the storage need not run.
  auto begin = end;
  while (begin != calls.begin()) {
    if ((--begin)->overwrites) break;
  }
  for (auto call = begin; call != end; ++call) {
    require_unchanged(*call);
    torch::jit::Stack stack = inputs_of(*call, storage);
    call->op.callBoxed(stack);
    if (call->result_place) call->result_place->on(storage).copy_(stack[call->result].toTensor());
  }
}

namespace {

using torch::jit::Stack;

// Below this size, keeping the bytes is cheaper than recording how to compute them.
constexpr std::size_t kDeferredBytes = 4096;
// Inputs up to this size are copied, so that later changes to them do not matter.
constexpr std::size_t kCopiedBytes = std::size_t{64} << 10;

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, const c10::OperatorHandle& op) {
  return std::find(names.begin(), names.end(), op.schema().name()) != names.end();
}

/// In-place operators that change a tensor's shape or memory but not its values.
bool changes_shape_only(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 11> kNames{
      "aten::as_strided_",   "aten::detach_", "aten::set_",       "aten::squeeze_",   "aten::swapaxes_",
      "aten::swapdims_",     "aten::t_",      "aten::transpose_", "aten::unsqueeze_", "aten::rename_",
      "aten::requires_grad_"};
  return is_one_of(kNames, op);
}

bool is_resize(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 2> kNames{"aten::resize_", "aten::resize_as_"};
  return is_one_of(kNames, op);
}

/// Whether the operator writes every element of its first input without reading any.
bool writes_without_reading(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 11> kNames{"aten::cauchy_",    "aten::copy_",      "aten::exponential_",
                                                           "aten::fill_",      "aten::geometric_", "aten::log_normal_",
                                                           "aten::bernoulli_", "aten::normal_",    "aten::random_",
                                                           "aten::uniform_",   "aten::zero_"};
  return is_one_of(kNames, op);
}

bool makes_views(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& one) {
    return one.alias_info() != nullptr && !one.alias_info()->isWrite();
  });
}

bool is_made_of_others(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  return !op.schema().is_mutable() && !makes_views(op) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const std::string& why) {
  throw ConfigError("under tessera::DeferredInit, " + op.schema().name() + " " + why +
                    ": build that part of the model outside of the guard");
}

/// Calls `visit` for each tensor of the inputs, those in lists too.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && value.toTensor().has_storage()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

bool is_on(const c10::Storage& storage, const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
}

/// The arguments of one call, as they lie on the stack.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op), values_(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack.end()) {}

  const Stack& values() const { return values_; }

  std::vector<at::Tensor> deferred() const {
    std::vector<at::Tensor> found;
    for (const c10::IValue& value : values_) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (history_of(tensor.storage()) != nullptr) found.push_back(tensor);
      });
    }
    return found;
  }

  bool reaches(const c10::Storage& storage) const {
    bool found = false;
    for (const c10::IValue& value : values_) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || is_on(storage, tensor); });
    }
    return found;
  }

  /// The one tensor that is written.
  const at::Tensor& written() const {
    const c10::IValue* found = nullptr;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto* alias = op_.schema().arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      if (found != nullptr || !values_[i].isTensor()) refuse(op_, "writes several tensors, which is not supported");
      found = &values_[i];
    }
    return found->toTensor();
  }

  /// A record with which the operator can run again for this storage.
  Call remembered_for(const c10::Storage& storage) const {
    Call call(op_, values_);
    for (std::size_t i = 0; i < values_.size(); ++i) keep_input(call, i, storage);
    keep_generator(call);
    return call;
  }

 private:
  void keep_input(Call& call, std::size_t position, const c10::Storage& storage) const {
    const c10::IValue& value = values_[position];
    if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!list[i].defined()) continue;
        // The history would hold a reference to itself, and never be freed.
        if (is_on(storage, list[i])) refuse(op_, "reads what it writes from a list");
        list[i] = kept(call, list[i], position, i);
      }
      call.inputs[position] = c10::IValue(std::move(list));
      return;
    }
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return;
    if (is_on(storage, value.toTensor())) {
      call.own.emplace_back(position, Place::of(value.toTensor()));
      call.inputs[position] = c10::IValue();
      return;
    }
    call.inputs[position] = kept(call, value.toTensor(), position, std::nullopt);
  }

  /// The tensor to record in place of the input; undefined for a deferred input, which is computed again.
  static at::Tensor kept(Call& call, const at::Tensor& tensor, std::size_t position,
                         std::optional<std::size_t> element) {
    if (const auto history = history_of(tensor.storage())) {
      call.past.push_back(
          {position, element, Place::of(tensor), history, history->calls.size(), tensor.storage().nbytes()});
      return {};
    }
    auto* const impl = tensor.unsafeGetTensorImpl();
    if (tensor.nbytes() <= kCopiedBytes) {
      at::Tensor copy = tensor.detach().clone();
      // Type promotion treats a wrapped number as a number, not as a tensor. So the copy must be one too.
      if (impl->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      return copy;
    }
    // Not the program's tensor itself, which may be given other memory, but an alias that shares its version counter
    // and so detects writes.
    at::Tensor alias(impl->shallow_copy_and_detach(impl->version_counter(), true));
    call.held.push_back({alias, impl->version_counter().current_version()});
    return alias;
  }

  void keep_generator(Call& call) const {
    if (!draws_random_numbers(op_.schema().name())) return;
    const auto& arguments = op_.schema().arguments();
    const auto found = std::find_if(arguments.begin(), arguments.end(),
                                    [](const c10::Argument& one) { return one.name() == "generator"; });
    if (found == arguments.end()) refuse(op_, "draws random numbers that cannot be drawn again");
    call.generator_position = static_cast<std::size_t>(found - arguments.begin());
    const c10::IValue& given = values_[call.generator_position];
    at::Generator source = given.isNone() ? at::detail::getDefaultCPUGenerator() : given.toGenerator();
    const std::lock_guard lock(source.mutex());
    call.generator = source.clone();
  }

  const c10::OperatorHandle& op_;
  Stack values_;
};

/// The operator writes a deferred tensor: records the write for later.
void remember_write(const c10::OperatorHandle& op, const Arguments& arguments, Stack& stack) {
  if (is_resize(op)) refuse(op, "cannot be deferred");
  const at::Tensor written = arguments.written();
  const c10::Storage& storage = written.storage();
  Call call = arguments.remembered_for(storage);
  const bool covers = static_cast<std::size_t>(written.numel()) * written.element_size() == storage.nbytes();
  call.overwrites = writes_without_reading(op) && covers && call.own.size() == 1;
  if (call.generator) {
    if (!writes_without_reading(op)) refuse(op, "draws random numbers depending on values");
    const LentBytes dropped(storage, bytes_for(storage));
    Stack now = arguments.values();
    op.callBoxed(now);
  }
  history_of(storage)->calls.push_back(std::move(call));
  written.unsafeGetTensorImpl()->bump_version();
  torch::jit::drop(stack, op.schema().arguments().size());
  if (!op.schema().returns().empty()) torch::jit::push(stack, written);
}

/// The operator makes new tensors: runs it, and drops the bytes of large results.
void run_and_forget(const c10::OperatorHandle& op, const Arguments& arguments, Stack& stack) {
  std::optional<Call> origin;
  // Recorded before the operator runs, because it may draw random numbers.
  const bool is_empty = op.schema().name().starts_with("aten::empty") || op.schema().name() == "aten::new_empty";
  if (!is_empty && !op.schema().is_mutable() && draws_random_numbers(op.schema().name()))
    origin = arguments.remembered_for(c10::Storage());
  {
    std::deque<LentBytes> lent;
    for (const at::Tensor& tensor : arguments.deferred()) {
      if (history_of(tensor.storage()) == nullptr) continue;  // lent already: it is an input twice
      lent.emplace_back(tensor.storage(), bytes_for(tensor.storage()));
      lent.back().fill();
    }
    op.callBoxed(stack);
  }
  const std::size_t num_results = op.schema().returns().size();
  for (std::size_t i = 0; i < num_results; ++i) {
    const c10::IValue& value = stack[stack.size() - num_results + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& result = value.toTensor();
    if (!result.device().is_cpu() || result.layout() != at::kStrided || result.storage().nbytes() < kDeferredBytes ||
        arguments.reaches(result.storage())) {
      continue;
    }
    const Place place = Place::of(result);
    defer(result.storage());
    if (is_empty) continue;
    Call call = origin ? *origin : arguments.remembered_for(c10::Storage());
    call.result_place = place;
    call.result = i;
    call.overwrites = true;
    history_of(result.storage())->calls.push_back(std::move(call));
  }
}

}  // namespace

void call_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (is_made_of_others(op)) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::DeferredInit),
                       stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard for_real(c10::DispatchKey::DeferredInit);
  if (changes_shape_only(op)) {
    op.callBoxed(stack);
    return;
  }
  const bool writes = op.schema().is_mutable();
  const Arguments arguments(op, *stack);
  const bool any_deferred = !arguments.deferred().empty();
  if (!writes && makes_views(op) && any_deferred) {
    op.callBoxed(stack);
  } else if (writes && any_deferred && history_of(arguments.written().storage()) != nullptr) {
    const at::NoGradGuard no_grad;
    remember_write(op, arguments, *stack);
  } else {
    run_and_forget(op, arguments, *stack);
  }
}

}  // namespace tessera::intercept
