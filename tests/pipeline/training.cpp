#include "pipeline/training.h"

#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
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
#include "support/slice_elements.h"
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

at::Tensor input_of(ParityModel& model, int step, int micro_batch) {
  return model.input(step, micro_batch).to(model.parameters().front().device());
}

at::Tensor loss_of(const PipelineCase& training, ParityModel& model, int step, int micro_batch) {
  std::optional<Autocast> autocast;
  if (training.uses_autocast) autocast.emplace(at::kBFloat16);
  return model.loss(model.forward(input_of(model, step, micro_batch)), step, micro_batch);
}

/// How one training goes.
struct Ways {
  std::function<std::pair<at::Tensor, double>(int step)> step;  ///< its loss, and the norm of its gradients
  std::function<void(const std::string& at_step)> note_gradients;
};

Values train(const PipelineCase& training, std::vector<at::Tensor> parameters, const Ways& ways) {
  torch::manual_seed(3);
  Values values;
  const auto optimizer = make_optimizer(training, std::move(parameters));
  for (int step = 0; step < training.num_steps; ++step) {
    optimizer->zero_grad();
    const auto [loss, norm] = ways.step(step);
    const std::string at_step = " in step " + std::to_string(step);
    values["loss" + at_step] = loss.clone().cpu();
    values["norm" + at_step] = torch::tensor(norm, torch::kDouble);
    ways.note_gradients(at_step);
    optimizer->step();
  }
  return values;
}

void note_whole_gradients(const ParityModel& model, const std::string& at_step, Values& values) {
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined()) values["gradient of " + item.key() + at_step] = gradient.clone();
  }
}

}  // namespace

std::string PipelineCase::text() const {
  return model + ", " + schedule + (num_chunks > 0 ? std::to_string(num_chunks) : "") + ", " +
         std::to_string(num_micro_batches) + " micro-batches, " + (uses_adamw ? "AdamW, " : "SGD, ") +
         (dtype == torch::kDouble ? "double, dp " : "single, dp ") + std::to_string(dp) + ", tp " + std::to_string(tp) +
         ", " + sharding;
}

Values train_alone(const PipelineCase& training) {
  const auto model = make_random_parity_model(training.model, training.dtype);
  const int num_micro_batches = training.num_micro_batches;
  Values gradients;
  const auto step = [&](int number) {
    at::Tensor sum;
    for (int i = 0; i < num_micro_batches; ++i) {
      const at::Tensor loss = loss_of(training, *model, number, i) / num_micro_batches;
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    return std::pair(sum, clip_grad_norm(model->parameters(), kMaxNorm));
  };
  const auto note = [&](const std::string& at_step) { note_whole_gradients(*model, at_step, gradients); };
  Values values = train(training, model->parameters(), {step, note});
  values.merge(gradients);
  for (const auto& item : model->named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model->named_buffers()) values[item.key()] = item.value().detach().clone();
  return values;
}

namespace {

/// `first`: of the micro-batches that this rank has.
std::pair<at::Tensor, double> run_step(const PipelineCase& training, ParityModel& model, const Pipeline& pipe,
                                       int first, int step) {
  PipelineBatch batch;
  batch.num_micro_batches = training.num_micro_batches / training.dp;
  batch.loss = [&, step](int i) { return loss_of(training, model, step, first + i); };
  batch.tensors = [&, step](int i) { return std::vector{input_of(model, step, first + i)}; };
  batch.weights.assign(static_cast<std::size_t>(batch.num_micro_batches), 1);
  const at::Tensor loss = pipe.run(batch, true);
  return {loss, clip_grad_norm(pipe, kMaxNorm)};
}

PipelineOptions options_of(const PipelineCase& training) {
  return PipelineOptions().schedule(training.schedule).num_chunks(training.num_chunks);
}

}  // namespace

Values train_in_stages(const PipelineCase& training, const Ranks& ranks) {
  const auto model = make_random_parity_model(training.model, training.dtype);
  const Pipeline pipe = pipeline(model, ranks, options_of(training));
  Values gradients;
  Values values = train(training, pipe.parameters(),
                        {[&](int step) { return run_step(training, *model, pipe, 0, step); },
                         [&](const std::string& at_step) { note_whole_gradients(*model, at_step, gradients); }});
  values.merge(gradients);
  for (const StateSlice& one : pipe.state_slices()) {
    if (one.slice.is_whole()) values[one.name] = one.values.clone();
  }
  return values;
}

namespace {

ParallelModel share_stages(const PipelineCase& training, const std::shared_ptr<ParityModel>& model,
                           const Ranks& ranks) {
  if (training.sharding == "ddp") return distribute(model, ranks);
  FsdpOptions options;
  FsdpOptions::fields().set_text(options, "strategy", training.sharding);
  return fully_shard(model, ranks, options.min_num_params(40).auto_wrap(wrap_by_size(200)));
}

/// By what the handle says that this rank holds.
void note_parts(const ParallelModel& model, const std::string& at_step, std::vector<GradientPart>& parts) {
  for (const TrainedTensor& trained : model.trained()) {
    if (!trained.tensor.grad().defined()) continue;
    const at::Tensor held = intercept::held_part(trained.tensor.grad()).detach().flatten();
    for (const ParameterPart& part : trained.parts) {
      if (part.held.size == 0) continue;
      parts.push_back({"gradient of " + part.name + at_step, part.slice,
                       held.narrow(0, part.held.start, part.held.size).to(at::kCPU, false, /*copy=*/true)});
    }
  }
}

}  // namespace

LayoutValues train_in_layout(const PipelineCase& training, const World& world) {
  const DeviceMesh mesh(world,
                        {{"dp", training.dp}, {"tp", training.tp}, {"pp", world.size() / training.dp / training.tp}});
  const auto model = make_random_parity_model(training.model, training.dtype);
  model->to(device_of(training.device_type, world.rank()));
  std::optional<TensorParallelModel> cut;
  if (training.tp > 1) cut = tensor_parallel(model, mesh["tp"], plan_for(training.model));
  const Pipeline pipe = pipeline(model, mesh["pp"], options_of(training));
  const ParallelModel shared = share_stages(training, model, mesh["dp"]);
  const int first = mesh["dp"].comm().rank() * training.num_micro_batches / training.dp;
  LayoutValues found;
  found.whole = train(training, pipe.parameters(),
                      {[&](int step) { return run_step(training, *model, pipe, first, step); },
                       [&](const std::string& at_step) { note_parts(shared, at_step, found.parts); }});
  for (auto& [name, value] : found.whole) {  // each rank's loss is the mean of its own micro-batches
    if (!name.starts_with("loss")) continue;
    mesh["dp"].comm().all_reduce(value);
    value /= training.dp;
  }
  const auto whole = pipe.gather();
  for (const auto& item : model->named_parameters()) found.whole[item.key()] = whole_copy(item.value()).cpu();
  return found;
}

namespace {

double scale_of(const PipelineCase& training, const std::string& name, const at::Tensor& wanted) {
  const bool has_rounding_of_steps = training.dtype == torch::kFloat && !name.ends_with(" in step 0");
  const double least = !has_rounding_of_steps ? 1e-3 : name.starts_with("norm") ? 10 : 1;  // that is of all gradients
  return std::max(wanted.abs().max().item<double>(), least);
}

}  // namespace

std::pair<double, std::string> largest_difference(const PipelineCase& training, const Values& found,
                                                  const Values& expected) {
  std::pair<double, std::string> largest{0, ""};
  for (const auto& [name, value] : found) {
    const auto known = expected.find(name);
    require(known != expected.end(), "one process has no " + name);
    const at::Tensor wanted = known->second.to(at::kDouble).flatten();
    const at::Tensor other = value.to(at::kDouble).flatten();
    require_equal(other.numel(), wanted.numel(), "elements of " + name);
    if (value.numel() == 0) continue;
    const double difference = (other - wanted).abs().max().item<double>() / scale_of(training, name, wanted);
    if (std::isnan(difference)) return {INFINITY, name};
    largest = std::max(largest, {difference, name});
  }
  return largest;
}

std::pair<double, std::string> largest_difference(const PipelineCase& training, const LayoutValues& found,
                                                  const Values& expected) {
  auto largest = largest_difference(training, found.whole, expected);
  for (const GradientPart& part : found.parts) {
    const auto known = expected.find(part.name);
    require(known != expected.end(), "one process has no " + part.name);
    const double scale = scale_of(training, part.name, known->second);
    const at::Tensor wanted = elements_of(known->second, part.slice);
    const double difference = (part.values - wanted).abs().max().item<double>() / scale;
    if (std::isnan(difference)) return {INFINITY, part.name};
    largest = std::max(largest, {difference, part.name});
  }
  return largest;
}

}  // namespace tessera::testing
