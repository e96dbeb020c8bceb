#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/exact_sum.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/gradient_promise.h>
#include <tessera/shard/trained_memory.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

void require_limit(double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
}

/// The gradients of trained tensors, in memory or where their owner keeps them.
class Gradients {
 public:
  void add(const at::Tensor& trained) {
    const auto keeper = shard::trained_memory_of(trained);
    if (keeper && keeper->keeps_gradient(trained)) {
      kept_[keeper].push_back(trained);
    } else {
      in_memory_.push_back(trained.grad());
    }
  }
  void add_squares_to(ExactSum& squares) const {
    std::vector<at::Tensor> held;
    for (const at::Tensor& gradient : in_memory_) held.push_back(intercept::held_part(gradient));
    squares.add_squares(held);
    for (const auto& [keeper, trained] : kept_) {
      keeper->read_gradients(trained, [&](const at::Tensor& piece) { squares.add_squares({piece}); });
    }
  }
  /// Multiplies them if they are longer than `max_norm`, and returns how long they were.
  double clip(const ExactSum& squares, double max_norm) const {
    const double norm = std::sqrt(squares.value());
    if (norm <= max_norm || !std::isfinite(norm)) return norm;
    for (const at::Tensor& gradient : in_memory_) gradient.mul_(max_norm / norm);
    for (const auto& [keeper, trained] : kept_) {
      for (const at::Tensor& one : trained) keeper->scale_gradient(one, max_norm / norm);
    }
    return norm;
  }

 private:
  std::vector<at::Tensor> in_memory_;
  std::map<std::shared_ptr<shard::TrainedMemory>, std::vector<at::Tensor>> kept_;
};

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
  Gradients gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  ExactSum squares;
  for (const at::Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (const Slice slice = global_slice(parameter); !slice.is_whole()) {
      throw ConfigError("a norm of all gradients needs all of them, and a parameter here is " + slice.text() +
                        ": the other parts are on other ranks");
    }
    if (parameter.grad().defined()) gradients.add(parameter);
  }
  gradients.add_squares_to(squares);
  return gradients.clip(squares, max_norm);
}

double clip_grad_norm(const ParallelModel& model, double max_norm) { return optim::clip_together({model}, max_norm); }

double optim::clip_together(const std::vector<ParallelModel>& models, double max_norm) {
  require_limit(max_norm);
  const at::NoGradGuard no_grad;
  Gradients gradients;
  ExactSum squares;
  for (const ParallelModel& model : models) {
    shard::require_no_promise(model.parameters(), "clip_grad_norm()");
    model.model_state()->settle_gradients();
    const std::vector<ModelAxis> axes = model.axes();
    Gradients counted;
    for (const TrainedTensor& trained : model.trained()) {
      if (!trained.tensor.grad().defined()) continue;
      gradients.add(trained.tensor);
      if (counts_here(trained, axes)) counted.add(trained.tensor);
    }
    ExactSum of_model;
    counted.add_squares_to(of_model);
    for (const ModelAxis& axis : axes) {
      if (axis.divides) of_model.all_reduce(axis.comm);
    }
    squares.add(of_model);
  }
  return gradients.clip(squares, max_norm);
}

}  // namespace tessera
