#pragma once

#include <stdexcept>
#include <string>

namespace tessera::testing {

/// For ranks: a check that fails ends the rank, so that the others and the test hear of it.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace tessera::testing
