#pragma once

#include <tessera/comm/communicator.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace tessera::testing {

/// How a reproducible training may be disturbed.
struct Disturbance {
  unsigned seed = 0;
  double delays = 0;     ///< the share of passes before and after which a rank sleeps, up to 50 ms
  bool shuffle = false;  ///< micro-batches in another order on every rank and in every step
  std::string model = "gpt";
  bool fused = false;  ///< tessera::optim::AdamW instead of torch::optim::AdamW
};

/// Sleeps now and then.
class Sleeper {
 public:
  Sleeper(const Disturbance& disturbance, int rank);
  void maybe_sleep();
  std::mt19937& random() { return random_; }

 private:
  double share_;
  std::mt19937 random_;
};

std::unique_ptr<torch::optim::Optimizer> make_adamw(const std::vector<at::Tensor>& parameters, bool fused);
std::uint64_t hash_of(const std::vector<at::Tensor>& tensors);

constexpr int kMicroBatches = 8;

/// Trains the GPT-like model in float with AdamW and clipping, 8 micro-batches a step, shared by the ranks. The hash of
/// all weights at the end. Collective.
std::uint64_t train_reproducibly(const Communicator& comm, int num_steps, const Disturbance& disturbance = {});

/// The same without reproducible mode.
std::uint64_t train_otherwise(const Communicator& comm, int num_steps);

}  // namespace tessera::testing
