#include "pipeline/training.h"

#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "support/require.h"
#include "support/whole_copy.h"
#include "tensor_parallel/plans.h"

namespace tessera::testing {
namespace {

constexpr double kEpsilon = 1e-6;
constexpr double kMaxNorm = 1e6;  // nothing is clipped: the norm itself is compared

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const PipelineCase& training, std::vector<at::Tensor> of) {
  if (training.uses_adamw) {
    return std::make_unique<optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-2).eps(kEpsilon));
  }
  return std::make_unique<torch::optim::SGD>(std::move(of), torch::optim::SGDOptions(5e-2).momentum(0.9));
}

std::shared_ptr<ParityModel> make_model(const PipelineCase& training) {
  auto model = make_parity_model(training.model, training.dtype);
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);  // ranks that are threads share LibTorch's
  for (auto& item : model->named_parameters()) {
    const auto values = torch::empty(item.value().sizes(), torch::kDouble).normal_(0, 1, generator);
    const bool is_factor = item.value().dim() == 1 && !item.key().ends_with("bias");  // of a norm
    item.value().copy_(item.value().dim() > 1 ? values * 0.3 : is_factor ? 1 + 0.1 * values : 0.1 * values);
  }
  return model;
}

at::Tensor loss_of(const PipelineCase& training, ParityModel& model, int step, int micro_batch) {
  std::optional<Autocast> autocast;
  if (training.uses_autocast) autocast.emplace(at::kBFloat16);
  return model.loss(model.forward(model.input(step, micro_batch)), step, micro_batch);
}

using Step = std::function<std::pair<at::Tensor, double>(int step)>;  // its loss, and the norm of its gradients

Values train(const PipelineCase& training, ParityModel& model, std::vector<at::Tensor> parameters,
             const Step& run_step) {
  torch::manual_seed(3);
  Values values;
  const auto optimizer = make_optimizer(training, std::move(parameters));
  for (int step = 0; step < training.num_steps; ++step) {
    optimizer->zero_grad();
    const auto [loss, norm] = run_step(step);
    if (training.dtype == torch::kDouble || step == 0) {
      const std::string at_step = " in step " + std::to_string(step);
      values["loss" + at_step] = loss.clone();
      values["norm" + at_step] = torch::tensor(norm, torch::kDouble);
      for (const auto& item : model.named_parameters()) {
        const at::Tensor& gradient = item.value().grad();
        if (gradient.defined() && training.sharding == "ddp")
          values["gradient of " + item.key() + at_step] = whole_copy(gradient);
      }
    }
    optimizer->step();
  }
  return values;
}

}  // namespace

Values train_alone(const PipelineCase& training) {
  const auto model = make_model(training);
  const int num_micro_batches = training.num_micro_batches;
  Values values = train(training, *model, model->parameters(), [&](int step) {
    at::Tensor sum;
    for (int i = 0; i < num_micro_batches; ++i) {
      const at::Tensor loss = loss_of(training, *model, step, i) / num_micro_batches;
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    return std::pair(sum, clip_grad_norm(model->parameters(), kMaxNorm));
  });
  for (const auto& item : model->named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model->named_buffers()) values[item.key()] = item.value().detach().clone();
  return values;
}

namespace {

/// `first`: of the micro-batches that this rank has.
Values train_by(const PipelineCase& training, ParityModel& model, const Pipeline& pipe, int first) {
  return train(training, model, pipe.parameters(), [&](int step) {
    PipelineBatch batch;
    batch.num_micro_batches = training.num_micro_batches / training.dp;
    batch.loss = [&, step](int i) { return loss_of(training, model, step, first + i); };
    batch.tensors = [&, step](int i) { return std::vector{model.input(step, first + i)}; };
    batch.weights.assign(static_cast<std::size_t>(batch.num_micro_batches), 1);
    const at::Tensor loss = pipe.run(batch, true);
    return std::pair(loss, clip_grad_norm(pipe, kMaxNorm));
  });
}

PipelineOptions options_of(const PipelineCase& training) {
  return PipelineOptions().schedule(training.schedule).num_chunks(training.num_chunks);
}

}  // namespace

Values train_in_stages(const PipelineCase& training, const Ranks& ranks) {
  const auto model = make_model(training);
  const Pipeline pipe = pipeline(model, ranks, options_of(training));
  Values values = train_by(training, *model, pipe, 0);
  for (const StateSlice& one : pipe.state_slices()) {
    if (one.slice.is_whole()) values[one.name] = one.values.clone();
  }
  return values;
}

Values train_in_layout(const PipelineCase& training, const World& world) {
  const DeviceMesh mesh(world,
                        {{"dp", training.dp}, {"tp", training.tp}, {"pp", world.size() / training.dp / training.tp}});
  const auto model = make_model(training);
  std::optional<TensorParallelModel> cut;
  if (training.tp > 1) cut = tensor_parallel(model, mesh["tp"], plan_for(training.model));
  const Pipeline pipe = pipeline(model, mesh["pp"], options_of(training));
  std::optional<ParallelModel> shared;
  if (training.sharding == "ddp") {
    shared = distribute(model, mesh["dp"]);
  } else {
    FsdpOptions options;
    FsdpOptions::fields().set_text(options, "strategy", training.sharding);
    shared = fully_shard(model, mesh["dp"], options.min_num_params(40).auto_wrap(wrap_by_size(200)));
  }
  Values values = train_by(training, *model, pipe, mesh["dp"].comm().rank() * training.num_micro_batches / training.dp);
  for (auto& [name, value] : values) {  // each rank's loss is the mean of its own micro-batches
    if (!name.starts_with("loss")) continue;
    mesh["dp"].comm().all_reduce(value);
    value /= training.dp;
  }
  const auto whole = pipe.gather();
  for (const auto& item : model->named_parameters()) values[item.key()] = whole_copy(item.value());
  return values;
}

std::pair<double, std::string> largest_difference(const Values& found, const Values& expected) {
  std::pair<double, std::string> largest{0, ""};
  for (const auto& [name, value] : found) {
    const auto known = expected.find(name);
    require(known != expected.end(), "one process has no " + name);
    const at::Tensor wanted = known->second.to(at::kDouble).flatten();
    const at::Tensor other = value.to(at::kDouble).flatten();
    require_equal(other.numel(), wanted.numel(), "elements of " + name);
    if (value.numel() == 0) continue;
    const double scale = std::max(wanted.abs().max().item<double>(), 1e-3);
    const double difference = (other - wanted).abs().max().item<double>() / scale;
    if (std::isnan(difference)) return {INFINITY, name};
    largest = std::max(largest, {difference, name});
  }
  return largest;
}

}  // namespace tessera::testing
