#include "fsdp/gather_schedule.h"

#include <algorithm>

namespace tessera::fsdp {
namespace {

// How many units are gathered ahead without limit_all_gathers.
constexpr std::size_t kFarAhead = 4;

}  // namespace

GatherSchedule::GatherSchedule(const std::vector<std::unique_ptr<Unit>>& units, const FsdpOptions& options,
                               SamePath& path)
    : units_(units), options_(options), path_(path), pins_(units.size(), 0) {}

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
  if (num_holds_ > 0) return false;
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
    if (!is_wanted && pins_[i] == 0) units_[i]->release(keeps_bytes());
  }
}

void GatherSchedule::release_all() {
  if (num_holds_ > 0) return;
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

void GatherSchedule::hold_all() {
  ++num_holds_;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    gather({static_cast<int>(i)});
    units_[i]->finish_gather();
  }
}

void GatherSchedule::let_go() {
  if (--num_holds_ == 0) release_all();
}

}  // namespace tessera::fsdp
