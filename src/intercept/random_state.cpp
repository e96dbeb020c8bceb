#include <tessera/core/digest.h>
#include <tessera/intercept/random_state.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace tessera::intercept {

std::optional<at::Device> accelerator_in_use() {
  const auto type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) return std::nullopt;
  const auto index = at::accelerator::getDeviceIndex();
  if (!at::globalContext().getAcceleratorHooksInterface(type).hasPrimaryContext(index)) return std::nullopt;
  return at::Device(*type, index);
}

namespace {

/// The CPU, the accelerators of these tensors and the current accelerator; without an accelerator, the CPU alone.
std::vector<at::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  const auto add = [&devices](at::Device device) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  };
  const auto type = at::accelerator::getAccelerator();
  if (!type) return devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.device().type() == *type) add(tensor.device());
  }
  if (const auto current = accelerator_in_use()) add(*current);
  return devices;
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

RandomState RandomState::of(const std::vector<at::Device>& devices) {
  RandomState found;
  for (const at::Device device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    at::Tensor state = state_of(generator);
    found.generators_.push_back({std::move(generator), std::move(state)});
  }
  return found;
}

RandomState RandomState::now(at::Device device) {
  return device.is_cpu() ? of({device}) : of({at::Device(at::kCPU), device});
}

RandomState RandomState::now(const std::vector<at::Tensor>& tensors) { return of(devices_of(tensors)); }

RandomState RandomState::now() const {
  RandomState found = *this;
  for (OfGenerator& one : found.generators_) one.state = state_of(one.generator);
  return found;
}

void RandomState::restore() const {
  for (OfGenerator one : generators_) {
    const std::lock_guard lock(one.generator.mutex());
    one.generator.set_state(one.state);
  }
}

bool RandomState::operator==(const RandomState& other) const {
  return std::ranges::equal(generators_, other.generators_, [](const OfGenerator& one, const OfGenerator& two) {
    return one.generator == two.generator && at::equal(one.state, two.state);
  });
}

std::uint64_t RandomState::digest() const {
  Digest all;
  for (const OfGenerator& one : generators_) {
    const at::Tensor state = one.state.contiguous();
    const auto* const bytes = static_cast<const char*>(state.const_data_ptr());
    // Word by word: a state has thousands of bytes, and one is taken around every operator that draws.
    for (std::size_t i = 0; i < state.nbytes(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof(word), state.nbytes() - i));
      all.add(word);
    }
  }
  return all.value();
}

}  // namespace tessera::intercept
