#pragma once

#include <tessera/comm/world.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/offload/offload.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::testing {

/// A training of a few layers on ranks that are threads.
struct OffloadTraining {
  int num_ranks = 2;
  int num_steps = 3;
  int num_micro_batches = 1;
  bool averages_each = false;  ///< micro-batch, rather than their sum
  int width = 24;
  bool amsgrad = false;
  bool uses_sgd = false;
  FsdpOptions fsdp;
  std::optional<OffloadOptions> offload;
  /// Where steps are saved; the newest one there is gone on from. Empty: nowhere.
  std::string checkpoints;
  /// Called behind each step of the optimizer.
  std::function<void(const World& world, const Offload* offload, int step)> after_step;
  /// Called when such a step has thrown, with a use of the model; the training ends then.
  std::function<void(const std::function<void()>& use)> on_failed_step;
};

/// Values of all parameters of the whole model.
using Weights = std::vector<at::Tensor>;

/// What rank 0 has when it is over. What a rank throws comes out, once all have ended.
Weights train(const OffloadTraining& training);

void expect_same_bits(const Weights& found, const Weights& expected, const std::string& where);

}  // namespace tessera::testing
