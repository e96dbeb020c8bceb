#include <tessera/core/error.h>
#include <tessera/shard/redistribution.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

namespace tessera {
namespace {

using Placements = std::vector<Placement>;

/// Calls `visit` for every position of a mesh.
void for_each_position(const std::vector<int>& axis_sizes, const std::function<void(const AxisPosition&)>& visit) {
  AxisPosition position{axis_sizes, std::vector<int>(axis_sizes.size(), 0)};
  for (;;) {
    visit(position);
    std::size_t axis = axis_sizes.size();
    while (axis > 0 && ++position.coordinates[axis - 1] == axis_sizes[axis - 1]) position.coordinates[--axis] = 0;
    if (axis == 0) return;
  }
}

/// What an exchange may lead to: axes that need no sum have their place then; those that will be partial may have any.
std::vector<Placements> exchange_targets(const Placements& placements, const Placements& to,
                                         const std::vector<Placement>& choices) {
  std::vector<Placements> targets{{}};
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    std::vector<Placement> next;
    if (placements[axis].is_partial()) {
      next = {placements[axis]};
    } else if (!to[axis].is_partial()) {
      next = {to[axis]};
    } else {
      std::ranges::copy_if(choices, std::back_inserter(next),
                           [](const Placement& choice) { return !choice.is_partial(); });
    }
    std::vector<Placements> longer;
    for (const Placements& target : targets) {
      for (const Placement& placement : next) {
        longer.push_back(target);
        longer.back().push_back(placement);
      }
    }
    targets = std::move(longer);
  }
  return targets;
}

/// In the order in which plans are compared.
struct Cost {
  std::int64_t num_received = 0;
  int num_exchanges = 0;
  int num_steps = 0;

  Cost with(const RedistributionStep& step) const {
    return {num_received + step.num_received, num_exchanges + (step.axis ? 0 : 1), num_steps + 1};
  }
  auto operator<=>(const Cost&) const = default;
};

}  // namespace

std::vector<Range> common_indices(const std::vector<Range>& these, const std::vector<Range>& those) {
  std::vector<Range> common;
  std::size_t first = 0;
  for (const Range& range : these) {
    while (first < those.size() && those[first].end() <= range.start) ++first;
    for (std::size_t i = first; i < those.size() && those[i].start < range.end(); ++i) {
      common.push_back(range.meet(those[i]));
    }
  }
  return common;
}

Redistribution::Redistribution(std::vector<std::int64_t> shape, std::vector<int> axis_sizes)
    : shape_(std::move(shape)), axis_sizes_(std::move(axis_sizes)) {}

void Redistribution::check(const Placements& placements) const {
  for_each_position(axis_sizes_, [&](const AxisPosition& position) { slice_at(shape_, placements, position); });
}

bool Redistribution::fits(const Placements& placements) const {
  try {
    check(placements);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

std::optional<RedistributionStep> Redistribution::step(const Placements& before, std::size_t axis,
                                                       const Placement& to) const {
  const Placement& from = before[axis];
  const int num_ranks = axis_sizes_[axis];
  if (from == to || (from.is_shard() && to.is_shard() && num_ranks > 1)) return std::nullopt;
  for (std::size_t later = axis + 1; later < before.size(); ++later) {
    if (!before[later].is_shard() || num_ranks == 1) continue;
    const auto dim = static_cast<std::size_t>(before[later].dim());
    if (from.shards(dim) || to.shards(dim)) return std::nullopt;
  }
  RedistributionStep step{axis, before, before, 0};
  step.after[axis] = to;
  if (!fits(step.after)) return std::nullopt;
  if (from.is_replicate() || to.is_partial() || num_ranks == 1) return step;
  for_each_position(axis_sizes_, [&](const AxisPosition& position) {
    const std::int64_t has = slice_at(shape_, before, position).num_elements();
    const std::int64_t gets = slice_at(shape_, step.after, position).num_elements();
    if (from.is_shard()) {
      step.num_received += gets - has;
    } else if (to.is_shard()) {
      step.num_received += gets * (num_ranks - 1);
    } else if (position.coordinates[axis] == 0) {  // of all ranks together, each adds up a part and passes it on
      step.num_received += 2 * gets * (num_ranks - 1);
    }
  });
  return step;
}

std::optional<RedistributionStep> Redistribution::exchange(const Placements& before, const Placements& after) const {
  for (std::size_t axis = 0; axis < before.size(); ++axis) {
    if (before[axis].is_partial() != after[axis].is_partial()) return std::nullopt;
  }
  if (before == after || !fits(after)) return std::nullopt;
  RedistributionStep step{std::nullopt, before, after, 0};
  for_each_position(axis_sizes_, [&](const AxisPosition& position) {
    const Slice has = slice_at(shape_, before, position);
    const Slice gets = slice_at(shape_, after, position);
    std::int64_t common = 1;
    for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
      std::int64_t count = 0;
      for (const Range& range : common_indices(has.indices()[dim], gets.indices()[dim])) count += range.size;
      common *= count;
    }
    step.num_received += gets.num_elements() - common;
  });
  return step;
}

std::vector<Placement> Redistribution::candidates(const Placements& from, const Placements& to) const {
  std::set<Placement> found{Placement::replicate(), Placement::partial()};
  found.insert(from.begin(), from.end());
  found.insert(to.begin(), to.end());
  for (std::size_t dim = 0; dim < shape_.size(); ++dim) found.insert(Placement::shard(static_cast<std::int64_t>(dim)));
  return {found.begin(), found.end()};
}

std::vector<RedistributionStep> Redistribution::remembered_plan(const Placements& from, const Placements& to) const {
  using Key = std::tuple<std::vector<std::int64_t>, std::vector<int>, Placements, Placements>;
  constexpr std::size_t kMost = 1000;  // a program that needs more has shapes that do not come again
  static std::mutex mutex;
  static std::map<Key, std::vector<RedistributionStep>> plans;
  Key key{shape_, axis_sizes_, from, to};
  // Ranks that are threads ask at the same time: one of them searches.
  const std::lock_guard lock(mutex);
  if (const auto found = plans.find(key); found != plans.end()) return found->second;
  auto steps = plan(from, to);
  if (plans.size() >= kMost) plans.clear();
  plans.emplace(std::move(key), steps);
  return steps;
}

std::vector<RedistributionStep> Redistribution::plan(const Placements& from, const Placements& to) const {
  check(from);
  check(to);
  if (from == to) return {};
  if (auto moved = exchange(from, to)) return {one_step(std::move(*moved))};
  return search(from, to);
}

RedistributionStep Redistribution::one_step(RedistributionStep exchange) const {
  std::vector<std::size_t> changed;
  for (std::size_t axis = 0; axis < axis_sizes_.size(); ++axis) {
    if (exchange.before[axis] != exchange.after[axis]) changed.push_back(axis);
  }
  if (changed.size() > 1) return exchange;
  auto along_axis = step(exchange.before, changed[0], exchange.after[changed[0]]);
  return along_axis ? std::move(*along_axis) : std::move(exchange);
}

std::vector<RedistributionStep> Redistribution::search(const Placements& from, const Placements& to) const {
  const std::vector<Placement> choices = candidates(from, to);
  struct Reached {
    Cost cost;
    RedistributionStep step;
  };
  std::map<Placements, Reached> reached{{from, {}}};
  using Entry = std::pair<Cost, Placements>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  open.push({{}, from});
  while (!open.empty() && open.top().second != to) {
    const Cost cost = open.top().first;
    const Placements placements = open.top().second;
    open.pop();
    if (cost > reached.at(placements).cost) continue;
    const auto take = [&](const std::optional<RedistributionStep>& found_step) {
      if (!found_step) return;
      const Cost total = cost.with(*found_step);
      const auto known = reached.find(found_step->after);
      if (known != reached.end() && known->second.cost <= total) return;
      reached.insert_or_assign(found_step->after, Reached{total, *found_step});
      open.push({total, found_step->after});
    };
    for (std::size_t axis = 0; axis < placements.size(); ++axis) {
      for (const Placement& next : choices) take(step(placements, axis, next));
    }
    for (const Placements& after : exchange_targets(placements, to, choices)) take(exchange(placements, after));
  }
  std::vector<RedistributionStep> steps;
  for (Placements at = to; at != from; at = steps.back().before) steps.push_back(reached.at(at).step);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace tessera
