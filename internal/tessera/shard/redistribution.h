#pragma once

#include <tessera/shard/placement.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// Note [Redistribution]
/// A step is one of these; the elements that a rank receives, with n ranks on the axis:
///
///   along one axis   shard -> replicate    all-gather       what the group holds, less its own part
///                    partial -> shard      reduce-scatter   its part, n - 1 times
///                    partial -> replicate  all-reduce       twice that
///                    to a part of what it has, or to partial: nothing
///   on all axes      exchange              what it gets and does not have; partial axes stay as they are
///
/// An exchange receives the least that is possible, so where no sum is made or undone, the plan is one step: along one
/// axis if that receives as little, because an exchange takes a message for each pair of ranks. Else all sequences of
/// steps are searched for one with the fewest elements and, of those, the fewest exchanges and then the fewest steps.
/// Between `from` and `to` a tensor may be replicated, partial, or a shard: plain, or as one of them has it. All ranks
/// find the same plan, since it depends on the mesh and not on the rank.
///
/// Where two axes shard one dimension, the later axis divides what the earlier one leaves. So a step along the earlier
/// axis alone cannot change its cut of that dimension.
struct RedistributionStep {
  std::optional<std::size_t> axis;  ///< none: an exchange
  std::vector<Placement> before;
  std::vector<Placement> after;
  std::int64_t num_received = 0;  ///< elements that all ranks of the mesh together receive
};

/// Finds the steps. See Note [Redistribution].
class Redistribution {
 public:
  using Placements = std::vector<Placement>;

  Redistribution(std::vector<std::int64_t> shape, std::vector<int> axis_sizes);

  /// Throws ConfigError when one of the placements does not fit the shape.
  std::vector<RedistributionStep> plan(const Placements& from, const Placements& to) const;
  /// The same, computed once. Thread-safety: any thread.
  std::vector<RedistributionStep> remembered_plan(const Placements& from, const Placements& to) const;

  /// The step that changes the placement of one axis; nullopt: there is none.
  std::optional<RedistributionStep> step(const Placements& before, std::size_t axis, const Placement& to) const;
  std::optional<RedistributionStep> exchange(const Placements& before, const Placements& after) const;
  /// What an axis may be on the way.
  std::vector<Placement> candidates(const Placements& from, const Placements& to) const;
  bool fits(const Placements& placements) const;
  /// Throws ConfigError when they do not fit.
  void check(const Placements& placements) const;

 private:
  /// The exchange, or a step along one axis that does the same.
  RedistributionStep one_step(RedistributionStep exchange) const;
  std::vector<RedistributionStep> search(const Placements& from, const Placements& to) const;

  std::vector<std::int64_t> shape_;
  std::vector<int> axis_sizes_;
};

/// The indices that are among both. Both ascend.
std::vector<Range> common_indices(const std::vector<Range>& these, const std::vector<Range>& those);

}  // namespace tessera
