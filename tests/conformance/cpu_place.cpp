#include "conformance/place.h"

namespace tessera::testing {

void prepare_places() {}
at::Device place_of(const World& /*world*/) { return at::kCPU; }
std::string name_of_place() { return ""; }

}  // namespace tessera::testing
