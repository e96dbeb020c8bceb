#include <tessera/core/error.h>

#include "fsdp/accelerator.h"

namespace bench {

void prepare_accelerator() {}

at::Device accelerator_of(const tessera::World& world) {
  const at::Device device = world.device();
  if (device.is_cpu()) {
    throw tessera::ConfigError(
        "expected an accelerator for --device, found none: this needs a GPU and the CUDA build of LibTorch (the preset "
        "`cuda`)");
  }
  return device;
}

}  // namespace bench
