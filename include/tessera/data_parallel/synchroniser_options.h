#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// When the ranks' gradients meet; docs/guides/synchronisation.md compares the modes.
enum class SynchronisationMode {
  kSynchronous,       ///< every update holds one gradient of every rank, computed on the weights that it updates
  kBoundedStaleness,  ///< an update may do without slow ranks, whose gradients come at most `max_staleness` later
  kAsynchronous,      ///< as before, without a bound
  kLocalSgd,          ///< every rank trains alone; every `period` steps the weights are averaged
};

/// "synchronous", "bounded_staleness", "asynchronous" or "local_sgd"; throws ConfigError for anything else.
SynchronisationMode parse_synchronisation_mode(std::string_view name);
std::string_view to_string(SynchronisationMode mode);

struct SynchroniserOptions {
  /// "synchronous", "bounded_staleness", "asynchronous" or "local_sgd". Leave "synchronous" when the ranks are equally
  /// fast; take "bounded_staleness" when one or another is slow now and then.
  TORCH_ARG(std::string, mode) = "synchronous";
  /// Only with "bounded_staleness": the most updates that a gradient may be behind. 0 is synchronous training. Raise
  /// it until no rank waits; the loss tells when it is too high.
  TORCH_ARG(std::int64_t, max_staleness) = 4;
  /// Only with "local_sgd": steps of a rank between two averagings. Raise it where the network is slow.
  TORCH_ARG(std::int64_t, period) = 16;
  /// Only with "asynchronous": updates that may wait on a rank until its next step, each as large as the parameters.
  /// When so many wait, the other ranks' updates wait as well. Raise it for ranks that differ more in speed.
  TORCH_ARG(std::int64_t, max_queued) = 32;

 public:
  static const FieldList<SynchroniserOptions>& fields();
};

}  // namespace tessera
