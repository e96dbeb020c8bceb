#include "conformance/place.h"
#include "support/tested_device.h"

namespace tessera::testing {

void prepare_places() {
  tested::reset();
  tested::connect();
}
at::Device place_of(const World& world) { return world.device(); }
std::string name_of_place() { return "-" + tested::name(); }

}  // namespace tessera::testing
