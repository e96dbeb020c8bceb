#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "recompute/run_state.h"

namespace tessera::recomputation {
namespace {

/// The CPU, the accelerators of these tensors and the current accelerator; without an accelerator, the CPU alone.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices{c10::Device(c10::DeviceType::CPU)};
  const auto add = [&devices](c10::Device device) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  };
  const auto type = at::accelerator::getAccelerator();
  if (!type) return devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.device().type() == *type) add(tensor.device());
  }
  // A device that was never used has no context, and getting its generator would create one.
  if (at::accelerator::deviceCount() > 0) {
    const auto index = at::accelerator::getDeviceIndex();
    if (at::globalContext().getAcceleratorHooksInterface(type).hasPrimaryContext(index)) add({*type, index});
  }
  return devices;
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

RandomState RandomState::now(const std::vector<at::Tensor>& tensors) {
  RandomState state;
  for (const c10::Device device : devices_of(tensors)) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    at::Tensor bytes = state_of(generator);
    state.generators_.push_back({std::move(generator), std::move(bytes)});
  }
  return state;
}

RandomState RandomState::now() const {
  RandomState state = *this;
  for (OfGenerator& one : state.generators_) one.state = state_of(one.generator);
  return state;
}

void RandomState::set() const {
  for (OfGenerator one : generators_) {
    const std::lock_guard lock(one.generator.mutex());
    one.generator.set_state(one.state);
  }
}

std::size_t RandomState::hash() const {
  std::size_t hash = 0;
  for (const OfGenerator& one : generators_) {
    const std::string_view bytes(static_cast<const char*>(one.state.const_data_ptr()), one.state.nbytes());
    hash = hash * 31 + std::hash<std::string_view>()(bytes);
  }
  return hash;
}

RandomScope::RandomScope(const std::optional<RandomState>& state) {
  if (!state) return;
  before_ = state->now();
  state->set();
}

RandomScope::~RandomScope() {
  if (before_) before_->set();
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
