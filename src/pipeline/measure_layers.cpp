#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>
#include <tessera/intercept/random_state.h>
#include <tessera/pipeline/measure_layers.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/shard/layer_names.h>
#include <tessera/shard/named_tensors.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "pipeline/ghost_shapes.h"

namespace tessera {
namespace {

constexpr int kNumRuns = 3;

/// What a step changes, until it ends.
class Untouched {
 public:
  explicit Untouched(const torch::nn::Module& model)
      : random_(intercept::RandomState::now(at::kCPU)),
        parameters_(model.parameters()),
        buffers_(buffers_of(model).tensors) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& one : parameters_) gradients_.push_back(std::exchange(one.mutable_grad(), at::Tensor()));
    for (const at::Tensor& one : buffers_) values_.push_back(one.detach().clone());
  }
  ~Untouched() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].detach().copy_(values_[i]);
    random_.restore();
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  intercept::RandomState random_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> values_;
};

}  // namespace

std::vector<double> measure_layers(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                                   const PipelineBatch& batch) {
  if (!model) throw ConfigError("there is no model to measure: the pointer is null");
  const auto num_layers = static_cast<std::int64_t>(layer_names(*model).size());
  if (num_layers == 0) {
    throw ConfigError("the model has no layers to measure: they are the elements of ModuleLists and Sequentials");
  }
  at::Tensor seconds = at::full({num_layers}, 1e9, at::kDouble);
  {
    const Untouched untouched(*model);
    // All layers on one rank, each a stage of its own.
    const Pipeline pipe = pipeline(model, ranks.comm().split({ranks.comm().rank()}, "measure_layers"),
                                   PipelineOptions().schedule("interleaved").num_chunks(num_layers));
    for (int i = 0; i <= kNumRuns; ++i) {
      pipe.run(batch, true);
      for (const auto& [stage, taken] : pipe.stage_seconds()) {
        if (i > 0) seconds[stage] = std::min(seconds[stage].item<double>(), taken);  // the first run warms up
      }
    }
  }
  ranks.comm().broadcast(seconds, 0);
  return {seconds.data_ptr<double>(), seconds.data_ptr<double>() + num_layers};
}

}  // namespace tessera
