#include "intercept/deferred/history.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

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

/// The input as it was, in memory of its own.
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
    // A list of its own: the remembered one stays as it is.
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
  // What an operator overwrites need not be computed.
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

}  // namespace tessera::intercept
