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

/// One of the things that a run keeps. Calls come in the order of the members, on all ranks.
class StatePart {
 public:
  virtual ~StatePart() = default;

  virtual void capture(RankState& into) const = 0;

  /// Takes the names that it wants; changes nothing.
  virtual void plan(SavedNames& names) = 0;
  /// What is to be read.
  virtual std::vector<HeldSlice> prepare() { return {}; }
  /// After it was read. `notes` gets what is not as it was.
  virtual void finish(std::vector<std::string>& notes) = 0;
};

/// The default generator of this rank's process: "random/rank/0/cpu".
///
/// Note [Random numbers on other ranks]
/// Each rank saves its own state, and rank r takes that of rank r. A rank that there was none of takes the number r,
/// counted from 0, that a copy of rank 0's generator draws (64 bits each), as the seed of its own. So it is the same
/// whenever the same state is restored, and differs from rank to rank.
std::unique_ptr<StatePart> random_part(int rank);

inline constexpr const char* kBucketsPrefix = "ddp/";
/// The reducer's buckets: "ddp/buckets", a row for each trained parameter in the order in which they travel: the number
/// of its bucket, and its place in parameters(). With the size of buckets that was asked for: who asks for another one
/// gets buckets of that size. And what the gradient hook remembers of them, see HookMemory.
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
