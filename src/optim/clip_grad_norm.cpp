#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/exact_sum.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/gradient_promise.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

void require_limit(double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
}

double clip(const std::vector<at::Tensor>& gradients, const ExactSum& squares, double max_norm) {
  const double norm = std::sqrt(squares.value());
  if (norm <= max_norm || !std::isfinite(norm)) return norm;
  for (const at::Tensor& gradient : gradients) gradient.mul_(max_norm / norm);
  return norm;
}

/// Whether this rank contributes the tensor to the sums over the axes: of several copies, only one counts.
bool counts_here(const TrainedTensor& trained, const std::vector<ModelAxis>& axes) {
  return std::all_of(trained.replicated_over.begin(), trained.replicated_over.end(),
                     [&](std::size_t axis) { return !axes[axis].divides || axes[axis].comm.rank() == 0; });
}

}  // namespace

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  require_limit(max_norm);
  shard::require_no_promise(parameters, "clip_grad_norm()");
  const at::NoGradGuard no_grad;
  // A model that ties weights lists one parameter twice.
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  ExactSum squares;
  for (const at::Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (const Slice slice = global_slice(parameter); !slice.is_whole()) {
      throw ConfigError("a norm of all gradients needs all of them, and a parameter here is " + slice.text() +
                        ": the other parts are on other ranks");
    }
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
  }
  squares.add_squares(gradients);
  return clip(gradients, squares, max_norm);
}

double clip_grad_norm(const ParallelModel& model, double max_norm) { return optim::clip_together({model}, max_norm); }

double optim::clip_together(const std::vector<ParallelModel>& models, double max_norm) {
  require_limit(max_norm);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  ExactSum squares;
  for (const ParallelModel& model : models) {
    shard::require_no_promise(model.parameters(), "clip_grad_norm()");
    model.model_state()->settle_gradients();
    const std::vector<ModelAxis> axes = model.axes();
    std::vector<at::Tensor> counted;
    for (const TrainedTensor& trained : model.trained()) {
      if (!trained.tensor.grad().defined()) continue;
      gradients.push_back(trained.tensor.grad());
      if (counts_here(trained, axes)) counted.push_back(intercept::held_part(gradients.back()));
    }
    ExactSum of_model;
    of_model.add_squares(counted);
    for (const ModelAxis& axis : axes) {
      if (axis.divides) of_model.all_reduce(axis.comm);
    }
    squares.add(of_model);
  }
  return clip(gradients, squares, max_norm);
}

}  // namespace tessera
