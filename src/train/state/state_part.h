#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/train/sampler.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/state/saved_names.h"

namespace tessera::train {

/// What the gradient hook of a model remembers from step to step, separately on each rank:
/// "ddp/hook/rank/0/bucket/2/error".
///
/// Errors belong to the gradients of one rank, and to the bucket that they were sent in. With another number of ranks,
/// or other buckets, they fit nowhere: the hook begins anew, and a note says so.
class HookMemory {
 public:
  using Buckets = DistributedModel::Buckets;

  /// `rank` and `num_ranks` are of the ranks that save together.
  HookMemory(DistributedModel model, int rank, int num_ranks);

  void capture(const Buckets& buckets, RankState& into) const;
  /// As StatePart's. `takes_buckets`: the saved buckets are used.
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

/// One part of the state of a run. The members are called in their order here, on all ranks.
class StatePart {
 public:
  virtual ~StatePart() = default;

  virtual void capture(RankState& into) const = 0;

  /// Takes the names that it needs; changes nothing.
  virtual void plan(SavedNames& names) = 0;
  /// The slices that are to be read.
  virtual std::vector<HeldSlice> prepare() { return {}; }
  /// Called after they were read. `notes` receives what differs from the saved run.
  virtual void finish(std::vector<std::string>& notes) = 0;
};

/// The default generator of this rank's process: "random/rank/0/cpu".
///
/// Note [Random numbers on other ranks]
/// Each rank saves its own state, and rank r restores that of rank r. If the saved run had no rank r, a copy of rank
/// 0's generator draws numbers of 64 bits, and number r of them, counted from 0, becomes the seed of rank r. So the
/// seed is the same whenever the same state is restored, and differs from rank to rank.
std::unique_ptr<StatePart> random_part(int rank);
/// The same for the thread's current accelerator, if the process uses one. A rank that the saved run did not have
/// begins with a seed that follows from the bytes of rank 0's state. A step without such states leaves the generator as
/// it is.
std::unique_ptr<StatePart> accelerator_random_part(int rank);

inline constexpr const char* kBucketsPrefix = "ddp/";
/// The reducer's buckets: "ddp/buckets", a row for each trained parameter in the order in which gradients are sent: the
/// number of its bucket, and its place in parameters(). Also the size of buckets that was requested: a run that
/// requests another size gets new buckets. Also what the gradient hook remembers, see HookMemory.
std::unique_ptr<StatePart> buckets_part(const DistributedModel& model, int rank, int num_ranks);

/// "sampler/epoch" and the others.
std::unique_ptr<StatePart> sampler_part(std::function<SamplerState()> get,
                                        std::function<void(const SamplerState&)> set);

/// A value by name.
template <class Value>
class ValuePart : public StatePart {
 public:
  ValuePart(std::string name, std::function<Value()> get, std::function<void(const Value&)> set)
      : name_(std::move(name)), get_(std::move(get)), set_(std::move(set)) {}

  void capture(RankState& into) const override { into.values[name_] = get_(); }
  void plan(SavedNames& names) override { planned_ = names.take_value<Value>(name_); }
  void finish(std::vector<std::string>& /*notes*/) override {
    if (planned_) set_(*planned_);
  }

 private:
  std::string name_;
  std::function<Value()> get_;
  std::function<void(const Value&)> set_;
  std::optional<Value> planned_;
};

}  // namespace tessera::train
