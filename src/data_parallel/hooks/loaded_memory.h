#pragma once

#include <tessera/data_parallel/gradient_hook.h>

#include <optional>
#include <vector>

namespace tessera::data_parallel {

/// What a checkpoint gave back of each bucket, until the bucket comes: only then there is something to put it into.
class LoadedMemory {
 public:
  void set(std::vector<BucketMemory> buckets);

  /// What is still here of these parameters in the bucket `index`; null when it came, or holds others.
  const BucketMemory* find(std::size_t index, const std::vector<at::Tensor>& parameters) const;
  /// The same, and it is gone afterwards.
  std::optional<BucketMemory> take(const GradientBucket& bucket);

 private:
  std::vector<std::optional<BucketMemory>> buckets_;
};

}  // namespace tessera::data_parallel
