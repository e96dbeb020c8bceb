#pragma once

#include <tessera/comm/world.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "fsdp/random_models/random_case.h"

namespace tessera::testing {

using NamedValues = std::map<std::string, at::Tensor>;

/// What one process gets that adds up the gradients of all ranks' micro-batches.
struct Expected {
  struct Step {
    NamedValues gradients;  ///< before clipping; undefined where there is none
    double norm = 0;
    double largest = 0;  ///< of all gradients
    std::vector<at::Tensor> evaluations;
  };
  std::vector<Step> steps;
  NamedValues state;  ///< at the end: parameters and buffers

  bool shares = false;    ///< several modules hold one parameter
  bool branches = false;  ///< branches went both ways
  bool freezes = false;
  bool leaves_unused = false;  ///< a trained parameter was without a gradient in some step
};
Expected train_alone(const RandomCase& one);

/// Trains in shards. Throws, naming what differs, unless each gradient, each evaluation and the state at the end are
/// those of one process. Collective.
void require_same_in_shards(const RandomCase& one, const Expected& expected, const World& world);

}  // namespace tessera::testing
