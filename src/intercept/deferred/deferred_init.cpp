#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/large_blocks.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <cstddef>
#include <new>

#include "intercept/deferred/recorder.h"

namespace tessera {
namespace {

/// LibTorch reserves this dispatch key for deferred initialisation, but does not use it. Its kernel belongs to the
/// process, as the dispatch table does; it is called only on threads with a guard.
c10::DispatchKey key_with_kernel() {
  // Never destroyed: threads may have a guard while the process ends. In static memory, so that a leak checker still
  // finds it.
  alignas(torch::Library) static std::byte memory[sizeof(torch::Library)];
  static const c10::DispatchKey key = [] {
    auto* const library =
        new (memory) torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::DeferredInit, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept::call_deferred>());
    return c10::DispatchKey::DeferredInit;
  }();
  return key;
}

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == tensor.storage().nbytes();
}

}  // namespace

DeferredInit::DeferredInit() : guard_(key_with_kernel()) {
  // Random numbers are drawn into large tensors that are freed at once: with malloc they would leave holes.
  intercept::keep_large_blocks_apart();
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && intercept::history_of(tensor.storage()) != nullptr;
}

void materialize(const at::Tensor& tensor) {
  if (!is_deferred(tensor)) return;
  intercept::LentBytes bytes(tensor.storage(), intercept::bytes_for(tensor.storage()));
  bytes.fill();
  bytes.keep();
}

void copy_values(const at::Tensor& target, const at::Tensor& source) {
  const at::NoGradGuard no_grad;
  if (!is_deferred(source)) {
    target.copy_(source);
    return;
  }
  const bool fits = covers_its_storage(source) && target.is_contiguous() &&
                    target.scalar_type() == source.scalar_type() && target.device() == source.device();
  // Directly in `target`'s memory if possible, so that the values never exist twice.
  const intercept::LentBytes bytes(source.storage(), fits ? c10::DataPtr(target.mutable_data_ptr(), target.device())
                                                          : intercept::bytes_for(source.storage()));
  bytes.fill();
  if (!fits) target.copy_(source);
}

}  // namespace tessera
