#include "recompute/saved_tensor.h"

#include <tessera/core/error.h>

#include <c10/core/ScalarType.h>

#include <sstream>

namespace tessera::recompute {

SavedTensor::SavedTensor(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      dtype(tensor.scalar_type()),
      device(tensor.device()),
      requires_grad(tensor.requires_grad()),
      version(tensor._version()) {}

std::string SavedTensor::text() const {
  std::ostringstream text;
  text << c10::toString(dtype) << ' ' << at::IntArrayRef(sizes) << " on " << device;
  return text.str();
}

void SavedTensor::require_same(const SavedTensor& again, std::size_t number) const {
  if (sizes != again.sizes || dtype != again.dtype || device != again.device) {
    throw ConfigError("the function given to checkpoint() did something else when it ran again in backward: tensor " +
                      std::to_string(number) + " of those it saves for its gradients was " + text() + ", and is now " +
                      again.text() +
                      ". It must do the same each time: look for what it reads that changed since forward");
  }
  // Statistics that a forward updates, as BatchNorm's, require no gradient and do change.
  if (requires_grad && version != again.version) {
    throw ConfigError(
        "a tensor that the function given to checkpoint() uses was changed in place between forward and "
        "backward: " +
        text() +
        ". What backward would compute again is no longer what forward computed: run backward before the "
        "optimizer's step");
  }
}

}  // namespace tessera::recompute
