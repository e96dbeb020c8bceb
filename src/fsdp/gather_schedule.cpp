#include "fsdp/gather_schedule.h"

#include <tessera/core/error.h>
#include <tessera/shard/same_model.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>

namespace tessera::fsdp {
namespace {

// A long evaluation must not take unbounded memory.
constexpr std::size_t kMaxEvents = 10'000;

}  // namespace

void SamePath::note(Event event, int unit) {
  const int code = 2 * unit + (event == Event::kAverage ? 1 : 0);
  digest_.add(static_cast<std::uint64_t>(code) + 1);
  if (events_.size() < kMaxEvents) events_.push_back(code);
}

void SamePath::require_agreement(const Communicator& comm, const NameOf& name_of) const {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  const auto path = digest_.positive();
  const at::Tensor extremes = at::tensor({path, -path}, at::kLong);
  comm.all_reduce(extremes, ReduceOp::kMax);
  const auto* found = extremes.const_data_ptr<std::int64_t>();
  if (found[0] == -found[1]) return;
  std::vector<std::string> lines;
  for (const int code : events_) {
    lines.push_back((code % 2 == 1 ? "averages " : "gathers ") + name_of(code / 2));
  }
  require_same_lines(comm, lines, "do not take the same path through the model",
                     "Parameters are gathered by all ranks together: take the same branch on every rank, by numbers "
                     "that all ranks have");
  throw ConfigError("the ranks of group " + comm.name() +
                    " do not take the same path through the model: they part after " + std::to_string(events_.size()) +
                    " gathers and averages");
}

void SamePath::forget() {
  digest_ = Digest();
  events_.clear();
}

bool NextUnits::ends_backward(const Place& place, const Place& next) {
  return std::get<2>(place) == Pass::kBackward && std::get<2>(next) != Pass::kBackward;
}

void NextUnits::used(int unit, Pass pass) {
  if (unit == std::get<1>(last_) && pass == std::get<2>(last_)) return;
  const Place place = after(last_, unit, pass);
  followed_by_[last_] = place;
  last_ = place;
}

std::vector<int> NextUnits::predict(std::size_t count) const {
  std::vector<int> units;
  Place place = last_;
  // An order that cycles among few units never yields more. So stop after as many steps as the map has entries.
  for (std::size_t i = 0; i < followed_by_.size() && units.size() < count; ++i) {
    const auto next = followed_by_.find(place);
    if (next == followed_by_.end() || ends_backward(place, next->second)) break;
    place = next->second;
    const int unit = std::get<1>(place);
    if (unit != std::get<1>(last_) && std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  }
  return units;
}

GatherSchedule::GatherSchedule(const std::vector<std::unique_ptr<Unit>>& units, const FsdpOptions& options,
                               SamePath& path, std::size_t num_expected)
    : units_(units),
      options_(options),
      path_(path),
      num_expected_(num_expected),
      pins_(units.size(), 0),
      holds_(units.size(), 0),
      writers_(units.size(), 0) {}

void GatherSchedule::use(int unit, Pass pass) {
  // It is whole, perhaps for this rank alone: what that does with it tells nothing about the order that all ranks have.
  if (holds_[static_cast<std::size_t>(unit)] > 0) return;
  const bool is_new = wanted_.empty() || wanted_.front() != unit;
  if (is_new) {
    order_.used(unit, pass);
    wanted_ = order_.predict(num_ahead(pass));
    wanted_.insert(wanted_.begin(), unit);
    if (reshards(pass)) release_all_but(wanted_);
  }
  // The unit itself first, then those ahead: they travel while this unit is awaited and used.
  if (is_new) {
    gather(wanted_);
    for (const int next : order_.predict(num_expected_)) units_[static_cast<std::size_t>(next)]->expect();
  } else if (units_[static_cast<std::size_t>(unit)]->state() == UnitState::kSharded) {
    gather({unit});
  }
  units_[static_cast<std::size_t>(unit)]->finish_gather();
}

void GatherSchedule::unit_is_complete() {
  if (options_.backward_prefetch() == BackwardPrefetch::kPost) gather(order_.predict(most_ahead()));
}

bool GatherSchedule::reshards(Pass pass) const {
  const auto strategy = options_.strategy();
  if (strategy == ShardingStrategy::kZero1) return false;
  return pass == Pass::kEvaluation || strategy != ShardingStrategy::kShardGradOp;
}

std::size_t GatherSchedule::most_ahead() const { return options_.limit_all_gathers() ? 1 : kFarAhead; }

std::size_t GatherSchedule::num_ahead(Pass pass) const {
  if (pass == Pass::kBackward) return options_.backward_prefetch() == BackwardPrefetch::kPre ? most_ahead() : 0;
  return options_.forward_prefetch() ? most_ahead() : 0;
}

void GatherSchedule::release_all_but(const std::vector<int>& wanted) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), static_cast<int>(i)) != wanted.end();
    if (!is_wanted && pins_[i] == 0 && holds_[i] == 0) units_[i]->release(keeps_bytes());
  }
}

void GatherSchedule::release_all() {
  wanted_.clear();
  release_all_but({});
}

void GatherSchedule::gather(const std::vector<int>& units) {
  for (const int unit : units) {
    Unit& wanted = *units_[static_cast<std::size_t>(unit)];
    if (wanted.state() != UnitState::kSharded) continue;
    ++num_gathers_;
    path_.note(SamePath::Event::kGather, unit);
    wanted.start_gather();
  }
}

void GatherSchedule::hold(const std::vector<int>& units, bool writes) {
  for (const int unit : units) {
    gather({unit});
    Unit& held = *units_[static_cast<std::size_t>(unit)];
    held.finish_gather();
    if (writes) held.begin_write();
  }
  // After all gathers: if one throws, nothing is held, and let_go() will not be called.
  for (const int unit : units) {
    ++holds_[static_cast<std::size_t>(unit)];
    if (writes) ++writers_[static_cast<std::size_t>(unit)];
  }
}

void GatherSchedule::let_go(const std::vector<int>& units, bool writes) {
  for (const int unit : units) {
    --holds_[static_cast<std::size_t>(unit)];
    if (writes) --writers_[static_cast<std::size_t>(unit)];
  }
  for (const int unit : units) carry_writes(unit);
  release_all();
}

bool GatherSchedule::is_holding() const {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (holds_[i] > 0 && !units_[i]->is_whole()) return true;
  }
  return false;
}

void GatherSchedule::carry_writes(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (!units_[index]->is_written() || pins_[index] > 0 || writers_[index] > 0) return;
  units_[index]->end_write();
  if (holds_[index] == 0) return;
  gather({unit});
  units_[index]->finish_gather();
}

}  // namespace tessera::fsdp
