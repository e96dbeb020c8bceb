#include "data_parallel/hooks/loaded_memory.h"

#include <utility>

#include "data_parallel/hooks/average.h"

namespace tessera::data_parallel {

void LoadedMemory::set(std::vector<BucketMemory> buckets) {
  buckets_.clear();
  for (BucketMemory& bucket : buckets) buckets_.emplace_back(std::move(bucket));
}

const BucketMemory* LoadedMemory::find(std::size_t index, const std::vector<at::Tensor>& parameters) const {
  if (index >= buckets_.size() || !buckets_[index]) return nullptr;
  return same_tensors(buckets_[index]->parameters, parameters) ? &*buckets_[index] : nullptr;
}

std::optional<BucketMemory> LoadedMemory::take(const GradientBucket& bucket) {
  if (!find(bucket.index, bucket.parameters)) return std::nullopt;
  return std::exchange(buckets_[bucket.index], std::nullopt);
}

}  // namespace tessera::data_parallel
