#pragma once

#include <tessera/data_parallel/gradient_hook.h>

#include <optional>
#include <vector>

namespace tessera::data_parallel {

/// The state of each bucket that was loaded from a checkpoint. It is kept here until the bucket first arrives, when the
/// hook can make the object that takes it.
class LoadedMemory {
 public:
  void set(std::vector<BucketMemory> buckets);

  /// The state of the bucket `index` with these parameters; null when it was taken, or belongs to other parameters.
  const BucketMemory* find(std::size_t index, const std::vector<at::Tensor>& parameters) const;
  /// The same, and removes it.
  std::optional<BucketMemory> take(const GradientBucket& bucket);

 private:
  std::vector<std::optional<BucketMemory>> buckets_;
};

/// Starts the exact sum of `tensor` over the ranks divided by `divisor`, in place. The returned function waits for it
/// and returns `tensor`.
GradientHook::Finish start_average(const at::Tensor& tensor, int divisor, const Communicator& comm);

/// Whether two lists hold the very same tensors.
bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// What lossy hooks compute in: double for double gradients, else float.
at::ScalarType compute_dtype(const at::Tensor& gradients);

}  // namespace tessera::data_parallel
