#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera::fuzz {

/// What must hold for every input; a fuzzer takes the end of the program for a finding.
inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace tessera::fuzz
