#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera {

/// While one lives, the tensors that this thread creates have no bytes, but for those below 4 KiB: how their values
/// come about is remembered instead. For models that are too large to be whole on one rank:
///
///   auto model = [] {
///     const tessera::DeferredInit no_bytes;
///     return std::make_shared<MyModel>();
///   }();
///   auto sharded = tessera::fully_shard(model, world);
///
/// `fully_shard` computes the values unit by unit, each where it belongs. They are the very values that the model would
/// have without the guard: random numbers are drawn in the same order from the same generator, which is left in the
/// same state. So a random initialisation is computed twice, once for the generator and once for the values.
///
/// Values that a constructor looks at (`item()`, a condition) are computed when they are looked at. Throws ConfigError,
/// with the operator's name, for what cannot be remembered: resizing, writing several tensors by one operator, random
/// operators that take no generator.
/// Thread-safety: made and ended by one thread. Guards nest.
class DeferredInit {
 public:
  DeferredInit();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Whether the tensor was made under a DeferredInit and has no bytes yet.
bool is_deferred(const at::Tensor& tensor);
/// Computes the tensor's values, and those of all tensors that share its memory. Nothing for one that has values.
void materialize(const at::Tensor& tensor);
/// Copies the values of `source` to `target`; deferred ones are computed in `target`'s memory and stay deferred.
/// Requires: the same shape.
void copy_values(const at::Tensor& target, const at::Tensor& source);

}  // namespace tessera
