#pragma once

#include <tessera/comm/communicator.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::testing {

/// How a reproducible training may be disturbed.
struct Disturbance {
  unsigned seed = 0;
  double delays = 0;     ///< the share of passes before and after which a rank sleeps, up to 50 ms
  bool shuffle = false;  ///< micro-batches in another order on every rank and in every step
  std::string model = "gpt";
};

constexpr int kMicroBatches = 8;

/// Trains the GPT-like model in float with AdamW and clipping, 8 micro-batches a step, shared by the ranks. The hash of
/// all weights at the end. Collective.
std::uint64_t train_reproducibly(const Communicator& comm, int num_steps, const Disturbance& disturbance = {});

/// The same without reproducible mode.
std::uint64_t train_otherwise(const Communicator& comm, int num_steps);

}  // namespace tessera::testing
