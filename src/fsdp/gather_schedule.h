#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/core/digest.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/intercept/pass_tracker.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/unit.h"

namespace tessera::fsdp {

/// What this rank has gathered and averaged, in order.
///
/// Note [One path for all ranks]
/// Gathers and averages are collective. A collective detects ranks that call it with different sizes, but not ranks
/// that mean different units of the same size: ranks that choose differently between two equal layers would compute
/// with each other's parameters. So each rank keeps a hash of its path, and the ranks compare their hashes at the end
/// of each backward pass that averages, before the optimizer steps. That is one small message a step.
class SamePath {
 public:
  enum class Event { kGather, kAverage };
  using NameOf = std::function<std::string(int unit)>;

  void note(Event event, int unit);
  /// Collective: over `comm`. Throws ConfigError, on every rank and with the same text, when the paths since the last
  /// forget() differ. The text says which rank differs, and where.
  void require_agreement(const Communicator& comm, const NameOf& name_of) const;
  /// A new path begins.
  void forget();

 private:
  Digest digest_;
  std::vector<int> events_;  // the first ones, to report where paths part
};

/// Each kind of pass uses the units in an order of its own.
using intercept::Pass;

/// Learns in which order units are used, and predicts which come next.
///
/// Note [Learning the order]
/// A place in the order is identified by the unit, the unit before it and the pass. The prediction is the unit that
/// followed this place last time. So iterations need no marked begin or end, evaluations have their own order, and a
/// new path is known from the next iteration on. All ranks see the same uses, so they predict the same.
class NextUnits {
 public:
  void used(int unit, Pass pass);
  /// Up to `count` different units that will be used after the last one, nearest first. Fewer if the order is not known
  /// that far, and none past the end of a backward pass, where parameters change.
  std::vector<int> predict(std::size_t count) const;

 private:
  using Place = std::tuple<int, int, Pass>;  // the unit before, the unit, the pass
  static bool ends_backward(const Place& place, const Place& next);
  static Place after(const Place& place, int unit, Pass pass) { return {std::get<1>(place), unit, pass}; }

  Place last_{-1, -1, Pass::kForward};
  std::map<Place, Place> followed_by_;
};

/// Decides which units are gathered and which are released. Every rank sees the same uses, so every rank decides the
/// same and the gathers match.
class GatherSchedule {
 public:
  /// How many units are gathered ahead without limit_all_gathers.
  static constexpr std::size_t kFarAhead = 4;

  /// Requires: `units` and `path` outlive it.
  /// `num_expected`: of how many units that come next expect() is called.
  GatherSchedule(const std::vector<std::unique_ptr<Unit>>& units, const FsdpOptions& options, SamePath& path,
                 std::size_t num_expected);

  /// Returns when the unit holds its values. Starts to gather the units that are predicted to follow. Collective.
  void use(int unit, Pass pass);
  /// The unit's gradients are complete. Collective.
  void unit_is_complete();
  /// An operator that uses the unit begins, or has ended. The unit stays gathered in between.
  void pin(int unit) { ++pins_[static_cast<std::size_t>(unit)]; }
  void unpin(int unit) { --pins_[static_cast<std::size_t>(unit)]; }

  /// Call it when a pass is over, or when shards will change: releases all units that are not pinned or held.
  void release_all();
  /// Keeps these units whole until let_go(). With `writes` they are copies of this rank alone, and let_go() writes this
  /// rank's parts back to the shards. Collective.
  void hold(const std::vector<int>& units, bool writes = false);
  void let_go(const std::vector<int>& units, bool writes = false);
  /// Whether a unit is held whole that would not see writes to its shard.
  bool is_holding() const;
  /// Writes the changes that operators made to a unit back to its shard, once the last operator has ended and no holder
  /// may write more. If the unit is held, it is gathered again. Collective.
  void carry_writes(int unit);
  std::uint64_t num_gathers() const { return num_gathers_; }

 private:
  bool keeps_bytes() const { return options_.strategy() == ShardingStrategy::kZero1; }
  bool reshards(Pass pass) const;
  std::size_t num_ahead(Pass pass) const;
  std::size_t most_ahead() const;
  void release_all_but(const std::vector<int>& wanted);
  void gather(const std::vector<int>& units);

  const std::vector<std::unique_ptr<Unit>>& units_;
  FsdpOptions options_;
  SamePath& path_;
  std::size_t num_expected_;
  NextUnits order_;
  std::vector<int> wanted_;   // the unit in use and those predicted
  std::vector<int> pins_;     // of each unit: operators under way that use it
  std::vector<int> holds_;    // of each unit: number of holders
  std::vector<int> writers_;  // of each unit: number of holders that write to it
  std::uint64_t num_gathers_ = 0;
};

}  // namespace tessera::fsdp
