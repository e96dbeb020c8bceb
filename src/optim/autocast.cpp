#include <tessera/core/error.h>
#include <tessera/optim/autocast.h>

#include <ATen/autocast_mode.h>

#include <sstream>

namespace tessera {
namespace {

at::DeviceType checked(at::ScalarType dtype, at::DeviceType device) {
  std::ostringstream fault;
  if (!at::autocast::is_autocast_available(device)) {
    fault << "Autocast: LibTorch has no autocast for the device " << device << "; expected cpu or cuda";
  } else if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) {
    fault << "Autocast: expected kBFloat16, kHalf, or kFloat to switch it off, found " << dtype;
  }
  if (fault.tellp() > 0) throw ConfigError(fault.str());
  return device;
}

}  // namespace

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(checked(dtype, device)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  const bool enabled = dtype != at::kFloat;
  at::autocast::set_autocast_enabled(device, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // The cache holds casts of the weights, which the optimizer is about to change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace tessera
