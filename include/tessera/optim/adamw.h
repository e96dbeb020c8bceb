#pragma once

#include <tessera/optim/late_numbers.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace tessera::optim {

using AdamWOptions = torch::optim::AdamWOptions;

/// AdamW that reads and writes each byte once a step: a drop-in for `torch::optim::AdamW`, on ATen's fused kernel.
///
///   tessera::optim::AdamW optimizer(model->parameters(), tessera::optim::AdamWOptions(3e-4).weight_decay(0.1));
///
/// Options, parameter groups and state are LibTorch's own (`AdamWOptions`, `AdamWParamState`), and so is the format
/// that `torch::save` writes: each of the two optimizers loads what the other one saved. The arithmetic is the same
/// too, except for rounding. One difference: a parameter that a group lists twice (tied weights) is stepped once.
///
/// Parameters that a sharded model keeps in files (OffloadOptions) are stepped there, piece by piece; what `state()`
/// holds for them may have no bytes.
/// Refused with ConfigError: complex parameters, gradients that are sparse or of another dtype or shape than their
/// parameter, states of another shape.
/// The same bits for the same number of threads; see Note [Where a vector ends] in adamw.cpp.
/// Thread-safety: one thread at a time.
class AdamW : public torch::optim::Optimizer {
 public:
  /// Throws ConfigError with every option that is out of range, those of the groups included.
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, const AdamWOptions& defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& defaults = {});

  /// Steps all parameters that have a gradient. Returns what `closure` returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As step(), if the first of these numbers is 0; if it is 1, nothing changes. The host need not know it: the device
  /// decides, and steps are counted in the states of the parameters when the host learns of them.
  void step_unless(const LateNumbers& found);
  /// Counts all steps in the states of the parameters, and waits for the device where it has not decided yet.
  void settle();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  using Times = std::unordered_map<void*, std::int64_t>;  // by parameter; twice, if it is in two groups
  /// A step of which the host does not know whether it was made.
  struct Undecided {
    LateNumbers found;
    Times times;
  };

  struct KeptElsewhere;

  void check_parameters() const;
  void step_all(const LateNumbers* found);
  void decide();
  void count(const Times& times);

  std::deque<Undecided> undecided_;
};

}  // namespace tessera::optim
