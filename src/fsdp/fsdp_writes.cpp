// Parameters that are held whole, and writes: to them and to shards.
#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_set>

#include "fsdp/flag.h"
#include "fsdp/fsdp_state.h"

namespace tessera::fsdp {
namespace {

/// Writes values that do not depend on gradients, as loading does and optimizers do not.
bool overwrites(std::string_view operator_name) {
  return operator_name == "aten::copy_" || operator_name == "aten::fill_" || operator_name == "aten::zero_";
}

}  // namespace

std::vector<int> FsdpState::all_units() const {
  std::vector<int> units(units_.size());
  std::iota(units.begin(), units.end(), 0);
  return units;
}

std::vector<int> FsdpState::units_of(const GatherOptions& options) const {
  if (!options.module()) return all_units();
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& parameter : options.module()->parameters()) wanted.insert(parameter.unsafeGetTensorImpl());
  std::vector<int> units;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& parameters = units_[i]->parameters();
    if (std::any_of(parameters.begin(), parameters.end(),
                    [&](const at::Tensor& parameter) { return wanted.contains(parameter.unsafeGetTensorImpl()); })) {
      units.push_back(static_cast<int>(i));
    }
  }
  return units;
}

void FsdpState::hold(const GatherOptions& options) {
  const std::vector<int> units = units_of(options);
  raise_kept_errors();
  const Flag busy(busy_);
  for (const int unit : units) units_[static_cast<std::size_t>(unit)]->require_unchanged();
  // What a forward has kept for a backward that did not come may be older than the shards.
  if (kept_ && !intercept::in_backward()) let_go_of_block();
  gathers_->hold(units, options.write_back());
  seal(units);
  ++num_wholes_;
  watch_shards();
}

void FsdpState::watch_shards() {
  const bool watches = notice_ != Notice::kCalls || num_wholes_ > 0 || may_step_;
  if (watches) {
    shard_watch_->resume();
  } else {
    shard_watch_->pause();
  }
}

void FsdpState::let_go(const GatherOptions& options) noexcept {
  const std::vector<int> units = units_of(options);
  const Flag busy(busy_);
  --num_wholes_;
  watch_shards();
  try {
    require_sealed(units);
  } catch (...) {
    if (!was_written_elsewhere_) kept_error_ = std::current_exception();  // else it is known who did it
  }
  try {
    gathers_->let_go(units, options.write_back());
    if (num_wholes_ > 0) seal(units);
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void FsdpState::seal(const std::vector<int>& units) {
  for (const int unit : units) {
    if (units_[static_cast<std::size_t>(unit)]->state() == UnitState::kGathered) {
      // Where ranks share a copy, another one may be ahead of this one and write its own part. Where nobody hears of
      // operators that write, all ranks should find the same.
      units_[static_cast<std::size_t>(unit)]->seal(/*all=*/notice_ == Notice::kCalls);
    }
  }
}

void FsdpState::require_sealed(const std::vector<int>& units) {
  for (const int unit : units) units_[static_cast<std::size_t>(unit)]->require_sealed();
}

void FsdpState::settle_gradients() {
  for (const auto& unit : units_) {
    unit->drop_cleared_gradients();
    if (unit->is_trained()) unit->mark_gradients();
  }
}

void FsdpState::trust_optimizer() {
  if (vector_guard_) vector_guard_->trust_optimizer();
}

void FsdpState::require_nothing_held() const {
  if (!gathers_->is_holding()) return;
  throw ConfigError("the parameters are to be written to while they are held whole (rank " +
                    std::to_string(ranks_.shards.world_rank()) +
                    "): what gather() returned must be gone, and backward of the last forward done");
}

void FsdpState::on_shard_write(const intercept::Use& use) {
  if (!is_own_thread()) {
    shard_lock_->refuse(
        "the shards of this model are to be written to by another thread than the one that sharded it "
        "(rank " +
        std::to_string(ranks_.shards.world_rank()) + "): run the optimizer where the model is trained");
    return;
  }
  if (busy_) return;
  const Flag busy(busy_);
  try {
    // What a forward has kept for a backward that did not come to this block.
    if (kept_ && num_wholes_ == 0) let_go_of_block();
    require_nothing_held();
    if (promise_) promise_->refuse_write();
    if (!overwrites(use.operator_name())) {
      for (const auto& unit : units_) unit->require_none_cleared();
    }
    // The optimizer, as a rule: what was gathered before is the past.
    gathers_->release_all();
    for (const auto& unit : units_) unit->before_write();
  } catch (const std::exception& error) {
    shard_lock_->refuse(error.what());
  }
}

void FsdpState::on_shard_written() {
  shard_lock_->allow();
  if (is_own_thread() && !busy_) after_write();
}

}  // namespace tessera::fsdp
