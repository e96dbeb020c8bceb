#pragma once

#include <cstdint>
#include <vector>

#include "data_parallel/gradient_sync.h"

namespace tessera::data_parallel {

/// For a rank whose part of the model has nothing to train, as a stage of a pipeline that is frozen. Along the axis of
/// the copies all ranks have that stage, so nobody waits.
class NothingToSync : public GradientSync {
 public:
  explicit NothingToSync(std::int64_t bucket_bytes) : bucket_bytes_(bucket_bytes) {}

  void backward_starts(const std::vector<bool>& /*used*/, bool /*is_first*/) override {}
  void gradient_came(std::size_t /*index*/, bool /*averages*/) override {}
  void backward_ends() override {}
  void gradients_are_final() override {}
  void shadow_backward() override {}
  void set_divisor(int /*divisor*/) override {}
  void set_bucket_bytes(std::int64_t bucket_bytes) override { bucket_bytes_ = bucket_bytes; }
  std::int64_t bucket_bytes() const override { return bucket_bytes_; }
  Buckets buckets() override { return {}; }
  void set_buckets(const Buckets& /*buckets*/) override {}
  void set_micro_batch(std::int64_t /*index*/) override {}
  void add_to(DdpStatistics& /*statistics*/) const override {}

 private:
  std::int64_t bucket_bytes_;
};

}  // namespace tessera::data_parallel
