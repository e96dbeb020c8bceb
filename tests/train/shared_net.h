#pragma once

#include <tessera/recompute/recomputable.h>
#include <tessera/train/parallelize.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::testing {

/// Tied and frozen parameters, buffers, a layer that may be left out, and layers that can be computed again.
struct SharedNet : torch::nn::Module, Recomputable {
  SharedNet();

  at::Tensor forward(const at::Tensor& x, bool uses_side = true);
  void set_recompute(bool recompute) override { recomputes = recompute; }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear side{nullptr};
  at::Tensor frozen;
  bool recomputes = false;
  int num_runs = 0;                 ///< of the first layers
  bool throws = false;              ///< in the middle of forward
  bool throws_in_backward = false;  ///< there too, when some gradients have come
  /// As schedules do that keep a pipeline busy: backward leaves the gradient of the side's weight for later, here.
  bool defers_side = false;
  std::vector<std::function<void()>> deferred;

 private:
  at::Tensor run_side(const at::Tensor& x);
};

constexpr std::int64_t kSharedNetInputs = 6;
/// Of all parameters, each once.
constexpr std::int64_t kSharedNetParameters = 6 * 10 + 10 + 10 + 10 + 10 * 10 + 10 + 10 * 10 + 10 + 10;

/// A way to share a model.
struct Way {
  std::string name;
  ParallelizeOptions options;

  bool is_ddp() const { return options.data_parallelism() == DataParallelism::kDdp; }
  /// The optimizer has a tensor for each parameter.
  bool is_by_parameter() const { return is_ddp() || options.fsdp().use_orig_params(); }
};

/// DDP, and each sharding strategy with rows of units and by parameter.
std::vector<Way> all_ways();

}  // namespace tessera::testing
