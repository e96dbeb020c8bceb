#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera {

/// While one lives, tensors of 4 KiB and more that this thread creates have no bytes. The operators that compute their
/// values are recorded instead. For models that are too large to be whole on one rank:
///
///   auto model = [] {
///     const tessera::DeferredInit no_bytes;
///     return std::make_shared<MyModel>();
///   }();
///   auto sharded = tessera::fully_shard(model, world);
///
/// `fully_shard` computes the values unit by unit, each where it belongs. They are exactly the values that the model
/// would have without the guard: random numbers are drawn in the same order from the same generator, which is left in
/// the same state. So a random initialisation is computed twice, once for the generator and once for the values.
///
/// Values that a constructor reads (`item()`, a condition) are computed when it reads them. Throws ConfigError, with
/// the operator's name, for operators that cannot be recorded: those that resize, those that write several tensors, and
/// random operators that take no generator.
/// Thread-safety: made and ended by one thread. Guards nest.
class DeferredInit {
 public:
  DeferredInit();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Whether the tensor was made under a DeferredInit and has no bytes yet.
bool is_deferred(const at::Tensor& tensor);
/// Computes the tensor's values, and those of all tensors that share its memory. Does nothing if it has values already.
void materialize(const at::Tensor& tensor);
/// Copies the values of `source` to `target`. A deferred `source` is computed for the copy and stays deferred.
/// Requires: the same shape.
void copy_values(const at::Tensor& target, const at::Tensor& source);

}  // namespace tessera
