#pragma once

#include <tessera/comm/world.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// What `tessera bench comm` measures.
struct MeasureCommOptions {
  /// Bytes of the whole tensor: of an all_reduce, of an all_gather's result, of a reduce_scatter's input.
  TORCH_ARG(std::vector<std::int64_t>, sizes) = { 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20 };
  /// How often every contestant is measured; they take turns.
  TORCH_ARG(std::int64_t, rounds) = 9;
  /// About how long one sample takes.
  TORCH_ARG(double, sample_seconds) = 0.02;
  /// Above zero: as many rounds as fit this time at each operation and size, of one call each, in alternating order.
  /// For small differences between few contestants.
  TORCH_ARG(double, paired_seconds) = 0;
  /// Measure only contestants whose name contains one of these, or equals what follows a "="; empty: all.
  TORCH_ARG(std::vector<std::string>, only) = {};
};

/// One contestant at one operation and size.
struct CommSample {
  std::string operation;   ///< "all_reduce", "all_gather" or "reduce_scatter"
  std::string contestant;  ///< "bare gloo", "gloo", "gloo+ring", "shm", "shm any", "bare mpi", "memcpy", ...
  std::int64_t num_bytes = 0;
  std::vector<double> seconds;  ///< an operation, of the slowest rank, in each round
};

/// Measures every backend and algorithm that works here, beside bare Gloo, bare MPI and a plain copy of the bytes that
/// a rank has to touch. Collective: over the world. The result is complete on rank 0.
std::vector<CommSample> measure_comm(const World& world, const MeasureCommOptions& options = {});

/// The bytes that each rank sends and receives at least, as nccl-tests count them, divided by the time.
double bus_bandwidth(const std::string& operation, int num_ranks, std::int64_t num_bytes, double seconds);

/// The table of the adaptive strategy that these samples suggest, as JSON (see WorldOptions::tuning_file).
std::string suggest_tuning(const std::vector<CommSample>& samples, int num_ranks, bool several_nodes);

}  // namespace tessera
