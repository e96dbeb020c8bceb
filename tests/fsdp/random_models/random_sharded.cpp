#include <tessera/optim/clip_grad_norm.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "fsdp/fsdp_state.h"
#include "fsdp/random_models/random_check.h"
#include "fsdp/random_models/random_model.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-10;
// Gradients that are zero but for rounding, as of a bias before a BatchNorm, are judged beside those of the model.
constexpr double kNoise = 1e-4;

ShardedModel shard(const RandomCase& one, const NodePtr& model, const Communicator& comm) {
  if (one.options.strategy() != ShardingStrategy::kHybridShard) return fully_shard(model, comm, one.options);
  const int length = one.num_ranks / one.num_replicas;
  const auto shards = comm.split_by([length](int rank) { return rank / length; }, "shards");
  const auto replicas = comm.split_by([length](int rank) { return rank % length; }, "replicas");
  return fully_shard(model, shards, replicas, one.options);
}

void require_close(const Tensor& found, const Tensor& expected, double scale, const std::string& what) {
  if (found.numel() == 0) return;
  const double difference = (found - expected).abs().max().item<double>();
  require(difference <= kTolerance * scale,
          what + ": differs by " + std::to_string(difference / scale) + " of " + std::to_string(scale) + " at most");
}

/// This rank's gradient of each extent of parameters that it holds.
struct Part {
  std::string name;
  std::int64_t start;  ///< in the parameter, in row-major order
  std::int64_t size;
  Tensor gradient;  ///< undefined where there is none
};

std::vector<Part> parts_of(const fsdp::Unit& unit) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < unit.layout().items().size(); ++i) {
    const Range held = unit.place_in_shard(i);
    if (held.size == 0) continue;
    Tensor gradient;
    if (!unit.trained_slices().empty()) {
      gradient = unit.trained_slices()[i].values.grad();
    } else if (unit.shard().grad().defined()) {
      gradient = unit.shard().grad().narrow(0, held.start, held.size);
    }
    parts.push_back({unit.layout().items()[i].name, unit.slice_of(i).as_extent()->start, held.size, gradient});
  }
  return parts;
}

std::vector<Part> parts_of(const ShardedModel& sharded) {
  std::vector<Part> parts;
  for (const auto& unit : sharded.state()->parts().units()) {
    const auto of_unit = parts_of(*unit);
    parts.insert(parts.end(), of_unit.begin(), of_unit.end());
  }
  const NamedTensors& whole = sharded.state()->parts().replicated();
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    parts.push_back({whole.names[i], 0, whole.tensors[i].numel(), whole.tensors[i].grad()});
  }
  return parts;
}

void require_gradients(const ShardedModel& sharded, const Expected::Step& expected, const std::string& when) {
  for (const Part& part : parts_of(sharded)) {
    const Tensor& whole = expected.gradients.at(part.name);
    const std::string what = "the gradient of " + part.name + when;
    if (!whole.defined()) {
      // Beside others that have one, a parameter without a gradient has zeros.
      require(!part.gradient.defined() || part.gradient.abs().max().item<double>() == 0, what + " should not be");
      continue;
    }
    require(part.gradient.defined(), what + " is missing");
    const double scale = std::max(whole.abs().max().item<double>(), kNoise * expected.largest);
    require_close(part.gradient.flatten(), whole.flatten().narrow(0, part.start, part.size), scale, what);
  }
}

void require_evaluations(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, const Node& model,
                         int rank, const std::string& when) {
  // Buffers that training changes are rank 0's at the next forward, not yet in an evaluation.
  if (rank > 0 && model.changes_buffers()) return;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    require_close(found.at(i), expected[i], expected[i].abs().max().item<double>(),
                  "evaluation " + std::to_string(i) + when);
  }
}

void require_state(const ShardedModel& sharded, const NamedValues& expected, const std::string& where) {
  const auto found = sharded.full_state_dict();
  for (const auto& [name, value] : expected) {
    require(found.contains(name), name + " is missing in the state" + where);
    const double scale = std::max(value.abs().max().item<double>(), kNoise);
    require_close(found.at(name).to(torch::kDouble), value.to(torch::kDouble), scale, name + " at the end" + where);
  }
}

}  // namespace

void require_same_in_shards(const RandomCase& one, const Expected& expected, const World& world) {
  const NodePtr model = make_random_model(one.seed);
  if (world.rank() > 0 && one.options.init_sync()) {
    // What rank 0 broadcasts at the start must replace this.
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + world.rank());
  }
  const ShardedModel sharded = shard(one, model, world.comm());
  torch::optim::SGD optimizer(sharded.parameters(), kLearningRate);
  StepWays ways;
  ways.without_sync = [&](const std::function<void()>& backward) {
    const auto guard = sharded.no_sync();
    backward();
  };
  const std::string where = " on rank " + std::to_string(world.rank());
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    const std::string when = " in step " + std::to_string(step) + where;
    const Expected::Step& wanted = expected.steps[step];
    optimizer.zero_grad();
    const auto evaluations = play_step(one, static_cast<int>(step), world.rank(), *model, ways);
    require_evaluations(evaluations, wanted.evaluations, *model, world.rank(), when);
    require_gradients(sharded, wanted, when);
    if (const double most = one.steps[step].max_norm; most > 0) {
      const double norm = clip_grad_norm(sharded, most);
      require(std::abs(norm - wanted.norm) <= kTolerance * wanted.norm, "the norm" + when);
    }
    optimizer.step();
  }
  require_state(sharded, expected.state, where);
}

}  // namespace tessera::testing
