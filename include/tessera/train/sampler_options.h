#pragma once

#include <tessera/core/arg.h>
#include <tessera/core/options.h>

#include <cstdint>
#include <string>

namespace tessera {

struct SamplerOptions {
  /// "shuffled", another order in each epoch, or "sequential", as the samples lie; for validation.
  TESSERA_ARG(std::string, order) = "shuffled";
  /// Another seed is another order. Also a run that goes on from a saved state must have the state's.
  TESSERA_ARG(std::int64_t, seed) = 0;
  /// Samples of a step over all ranks. May differ from that of the run that saved the state.
  TESSERA_ARG(std::int64_t, global_batch) = 1;
  /// Which samples of a global batch a rank takes: "contiguous", one stretch after another by rank, or "strided", every
  /// n-th. Leave it, unless the samples of a stretch have something in common.
  TESSERA_ARG(std::string, split) = "contiguous";
  /// What happens to the samples at an epoch's end that fill no batch: "drop" leaves them out of this epoch, "keep"
  /// makes a shorter batch, in which ranks may have fewer samples than others, or none.
  TESSERA_ARG(std::string, last_batch) = "drop";

 public:
  static const FieldList<SamplerOptions>& fields();
};

}  // namespace tessera
