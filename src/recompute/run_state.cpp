#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include "recompute/run_state.h"

namespace tessera::recomputation {

RandomScope::RandomScope(const std::optional<RandomState>& state) {
  if (!state) return;
  before_ = state->now();
  state->restore();
}

RandomScope::~RandomScope() {
  if (before_) before_->restore();
}

AutocastState AutocastState::now() {
  AutocastState state;
  const auto add = [&state](c10::DeviceType device) {
    state.devices_.push_back(
        {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  };
  add(c10::DeviceType::CPU);
  if (const auto accelerator = at::accelerator::getAccelerator()) add(*accelerator);
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (const OfDevice& one : devices_) {
    at::autocast::set_autocast_enabled(one.device, one.enabled);
    at::autocast::set_autocast_dtype(one.device, one.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

AutocastScope::AutocastScope(const AutocastState& state) : before_(AutocastState::now()) {
  at::autocast::increment_nesting();
  state.set();
}

AutocastScope::~AutocastScope() {
  before_.set();
  // As at the end of an autocast region: cached casts of the weights must not outlive the weights' values.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

}  // namespace tessera::recomputation
