#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/data_parallel/distribute.h>

#include <string>
#include <vector>

#include "train/state/saved_names.h"

namespace tessera::train {

/// What the gradient hook of a model remembers from step to step, each rank its own: "ddp/hook/rank/0/bucket/2/error".
///
/// Errors belong to the gradients of one rank, and to the bucket they travelled in. On another number of ranks, or with
/// other buckets, there is nobody to give them to: the hook begins anew, and a note says so.
class HookMemory {
 public:
  using Buckets = DistributedModel::Buckets;

  /// `rank` and `num_ranks` of those that save together.
  HookMemory(DistributedModel model, int rank, int num_ranks);

  void capture(const Buckets& buckets, RankState& into) const;
  /// As StatePart's. `takes_buckets`: the saved ones.
  void plan(const SavedNames& names, bool takes_buckets);
  std::vector<HeldSlice> prepare() const { return slices_; }
  /// `buckets` are those of the saved run, empty when it had none.
  void finish(const Buckets& buckets, std::vector<std::string>& notes);

 private:
  std::string prefix() const;
  std::string prefix_of(std::size_t bucket) const;
  std::vector<BucketMemory> buckets_of(const Buckets& buckets) const;
  std::string why_not(const SavedNames& names) const;

  DistributedModel model_;
  int rank_;
  int num_ranks_;
  std::string why_not_;
  std::vector<HeldSlice> slices_;  // to be read
};

}  // namespace tessera::train
