#pragma once

#include <tessera/comm/world.h>

#include <string>

namespace tessera::testing {

/// Where the tensors of the cases are: cpu_place.cpp or device_place.cpp.
void prepare_places();
at::Device place_of(const World& world);
/// Behind the backend's name in the report: empty, or "-" and the kind of device.
std::string name_of_place();

}  // namespace tessera::testing
