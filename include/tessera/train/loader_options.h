#pragma once

#include <tessera/core/arg.h>
#include <tessera/core/options.h>

#include <cstdint>

namespace tessera {

struct LoaderOptions {
  /// Threads that make batches. Raise it when making one takes longer than a step; the order stays the same.
  TESSERA_ARG(std::int64_t, num_threads) = 1;
  /// Batches that may lie ready or in the making. Raise it when the time to make one varies; each costs its memory.
  TESSERA_ARG(std::int64_t, prefetch) = 4;

 public:
  static const FieldList<LoaderOptions>& fields();
};

}  // namespace tessera
