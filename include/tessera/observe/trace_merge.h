#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::observe {

/// What was found in the trace of one rank.
struct MergedTrace {
  std::string path;
  int rank = -1;
  std::int64_t num_packets = 0;
  std::int64_t offset_ns = 0;       ///< how far rank 0's clock was ahead at the first comparison
  std::int64_t error_ns = 0;        ///< of that comparison
  std::int64_t num_lost_bytes = 0;  ///< of a packet at the end that is not whole: its rank was killed
};

/// Writes the traces of several ranks into one file, on the clock of rank 0: between two comparisons of the clocks
/// their distance changes evenly, before the first and after the last it stays.
/// Throws ConfigError for a file that is no trace of ours, two of one rank or none at all, StorageError when one cannot
/// be read or written.
std::vector<MergedTrace> merge_traces(const std::vector<std::filesystem::path>& files,
                                      const std::filesystem::path& merged);

}  // namespace tessera::observe
