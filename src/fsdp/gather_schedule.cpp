#include "fsdp/gather_schedule.h"

#include <algorithm>

namespace tessera::fsdp {
namespace {

// How many units are gathered ahead without limit_all_gathers.
constexpr std::size_t kFarAhead = 4;

}  // namespace

GatherSchedule::GatherSchedule(const std::vector<std::unique_ptr<Unit>>& units, const FsdpOptions& options,
                               SamePath& path)
    : units_(units),
      options_(options),
      path_(path),
      pins_(units.size(), 0),
      holds_(units.size(), 0),
      writers_(units.size(), 0) {}

void GatherSchedule::use(int unit, Pass pass) {
  const bool is_new = wanted_.empty() || wanted_.front() != unit;
  if (is_new) {
    order_.used(unit, pass);
    wanted_ = order_.foretell(num_ahead(pass));
    wanted_.insert(wanted_.begin(), unit);
    if (reshards(pass)) release_all_but(wanted_);
  }
  // The unit itself first, then those ahead: they travel while it is waited for and used.
  if (is_new) {
    gather(wanted_);
  } else if (units_[static_cast<std::size_t>(unit)]->state() == UnitState::kSharded) {
    gather({unit});
  }
  units_[static_cast<std::size_t>(unit)]->finish_gather();
}

void GatherSchedule::unit_is_complete() {
  if (options_.backward_prefetch() == BackwardPrefetch::kPost) gather(order_.foretell(most_ahead()));
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
  // All or none: who could not have them will not let them go.
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
