#pragma once

#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parity/models.h"

namespace tessera::testing {

constexpr int kNumSteps = 20;

/// One cell of the matrix.
struct ParityCase {
  std::string model = "gpt";      ///< see make_parity_model
  std::string optimizer = "sgd";  ///< "sgd" or "adamw"
  torch::Dtype dtype = torch::kDouble;
  int num_ranks = 2;
  int micro_batches = 1;  ///< of each rank in a step
  torch::DeviceType device_type = torch::kCPU;
  int num_steps = kNumSteps;
  double least_tolerance = 0;  ///< of a device whose kernels are not the CPU's

  /// Relative to a tensor's largest value.
  double tolerance() const { return std::max(least_tolerance, dtype == torch::kDouble ? 1e-10 : 1e-5); }
  std::string text() const;
};

using State = std::map<std::string, torch::Tensor>;
/// Parameters and buffers, copied to the CPU.
State state_of(const torch::nn::Module& model);

/// What one process gets that adds up the gradients of the same micro-batches.
State train_alone(const ParityCase& parity);

/// How to train on several ranks: one name for each way of using the library.
const std::vector<std::string>& parity_variants();
/// This rank's state at the end. Collective.
State train_distributed(const ParityCase& parity, const std::string& variant, const Communicator& comm);

/// Throws, naming the tensor, when a parameter differs by more than the tolerance. Buffers as well, if asked.
void require_equal(const State& found, const State& expected, const ParityCase& parity, const std::string& what);

}  // namespace tessera::testing
