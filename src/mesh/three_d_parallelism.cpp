#include <tessera/core/error.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/three_d_parallelism.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "mesh/axis_names.h"

namespace tessera {
namespace {

using mesh::join;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_counts(int num_layers, int num_stages) {
  if (num_stages < 1 || num_layers < num_stages) {
    throw ConfigError(std::to_string(num_layers) + " layers cannot fill " + std::to_string(num_stages) +
                      " pipeline stages: use 1 to " + std::to_string(std::max(num_layers, 1)) +
                      " stages, each of which needs a layer");
  }
}

struct Cuts {
  double value = kInfinity;
  std::vector<int> layers_per_stage;
};

/// The best way to cut the layers into stages: it minimises `combine(best of the stages before, cost of the next)`, and
/// no stage may cost more than `cap`.
template <class Combine>
Cuts best_cuts(const std::vector<double>& costs, int num_stages, double cap, Combine combine) {
  const auto n = costs.size();
  const auto stages = static_cast<std::size_t>(num_stages);
  std::vector<double> prefix(n + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), prefix.begin() + 1);

  // best[s][j]: of the first j layers on s stages; from[s][j]: where the last of these stages begins.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, kInfinity));
  std::vector<std::vector<std::size_t>> from(stages + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t j = s; j + (stages - s) <= n; ++j) {
      for (std::size_t i = s - 1; i < j; ++i) {
        const double stage = prefix[j] - prefix[i];
        const double value = stage <= cap ? combine(best[s - 1][i], stage) : kInfinity;
        // The last of equal values, so that later stages hold fewer layers, as with even_layers().
        if (value <= best[s][j]) {
          best[s][j] = value;
          from[s][j] = i;
        }
      }
    }
  }

  Cuts cuts{best[stages][n], std::vector<int>(stages)};
  for (std::size_t s = stages, end = n; s > 0; end = from[s][end], --s) {
    cuts.layers_per_stage[s - 1] = static_cast<int>(end - from[s][end]);
  }
  return cuts;
}

}  // namespace

std::vector<int> even_layers(int num_layers, int num_stages) {
  check_counts(num_layers, num_stages);
  std::vector<int> counts(static_cast<std::size_t>(num_stages), num_layers / num_stages);
  for (int stage = 0; stage < num_layers % num_stages; ++stage) {
    ++counts[static_cast<std::size_t>(stage)];
  }
  return counts;
}

std::vector<int> balanced_layers(const std::vector<double>& layer_costs, int num_stages) {
  check_counts(static_cast<int>(layer_costs.size()), num_stages);
  for (double cost : layer_costs) {
    if (!std::isfinite(cost) || cost < 0) {
      throw ConfigError("a layer cost is " + std::to_string(cost) + ": give finite costs, zero or more");
    }
  }
  const double bottleneck = best_cuts(layer_costs, num_stages, kInfinity, [](double so_far, double stage) {
                              return std::max(so_far, stage);
                            }).value;
  // The bottleneck is itself one of the sums that are compared with the cap, so no tolerance is needed.
  return best_cuts(layer_costs, num_stages, bottleneck,
                   [](double so_far, double stage) { return so_far + stage * stage; })
      .layers_per_stage;
}

std::optional<std::string> uneven_layers_note(const std::vector<int>& layers_per_stage) {
  const auto [least, most] = std::minmax_element(layers_per_stage.begin(), layers_per_stage.end());
  if (least == layers_per_stage.end() || *least == *most) {
    return std::nullopt;
  }
  std::vector<std::string> counts;
  counts.reserve(layers_per_stage.size());
  for (int count : layers_per_stage) {
    counts.push_back(std::to_string(count));
  }
  return "the pipeline stages hold unequal numbers of layers (" + join(counts, ", ") +
         "): the costliest stage sets the pace of all";
}

namespace {

using mesh::arrangement_fault;
using mesh::names_of;
using mesh::product_fault;
using mesh::throw_if_any;

std::vector<AxisSpec> axes_of(const ThreeDParallelismConfig& config) {
  return {{"dp", config.dp()}, {"tp", config.tp()}, {"pp", config.pp()}};
}

void add_size_faults(const ThreeDParallelismConfig& config, int world_size, std::vector<std::string>& faults) {
  const auto axes = axes_of(config);
  bool positive = true;
  for (const auto& axis : axes) {
    if (axis.size > 0) continue;
    positive = false;
    if (axis.name == "dp" && axis.size == 0) {
      // for_world() has found no size.
      faults.push_back("dp is 0, for as many as the ranks allow, and tp x pp = " + std::to_string(config.tp()) + " x " +
                       std::to_string(config.pp()) + " does not divide the " + std::to_string(world_size) +
                       " ranks: start a multiple of " + std::to_string(config.tp() * config.pp()) +
                       " ranks, or change tp and pp");
    } else {
      faults.push_back(axis.name + " is " + std::to_string(axis.size) + ": use 1 or more");
    }
  }
  if (world_size < 1) {
    faults.push_back("the world has " + std::to_string(world_size) + " ranks: start 1 or more");
  } else if (positive) {
    faults.push_back(product_fault(axes, world_size));
  }
  faults.push_back(arrangement_fault(names_of(axes), config.axis_order(), "axis_order"));
}

void add_layer_faults(const ThreeDParallelismConfig& config, std::vector<std::string>& faults) {
  const int layers = config.num_layers();
  if (layers == 0) return;  // of the model, which is not known here
  const std::string found = "num_layers is " + std::to_string(layers);
  const int stages = std::max(config.pp(), 1) * config.chunks();
  const std::string schedule(to_string(config.pipeline_schedule()));
  if (layers < 0) {
    faults.push_back(found + ": use what the model has, or 0 to take its own number");
  } else if (layers < config.pp()) {
    faults.push_back(found + " for " + std::to_string(config.pp()) + " pipeline stages: use pp of " +
                     std::to_string(layers) + " or less, or a deeper model");
  } else if (layers < stages) {
    // The alternative would be to use 1f1b without a message.
    faults.push_back(found + " for " + std::to_string(config.pp()) + " pipeline stages, and pipeline_schedule " +
                     schedule + " needs two layers a stage: use pp of " +
                     std::to_string(std::max(layers / config.chunks(), 1)) + " or less, or pipeline_schedule 1f1b");
  }
}

void add_limit_faults(const ThreeDParallelismConfig& config, std::vector<std::string>& faults) {
  if (config.micro_batch_size() < 0) {
    faults.push_back("micro_batch_size is " + std::to_string(config.micro_batch_size()) +
                     ": use 1 or more, or 0 for all samples of a rank at once");
  }
  if (config.pp() > 1 && config.micro_batch_size() == 0) {
    faults.push_back(
        "micro_batch_size is 0, for all samples at once, and then only one stage of a pipeline works at a time: use 1 "
        "or more");
  }
  if (config.memory_limit_bytes() < 0) {
    faults.push_back("memory_limit_bytes is " + std::to_string(config.memory_limit_bytes()) +
                     ": use what the device has, in bytes, or 0 for no limit");
  }
  if (config.communication_timeout().count() < 0) {
    faults.push_back("communication_timeout is " + std::to_string(config.communication_timeout().count()) +
                     " ms: use 1 ms or more, or 0 for the world's");
  }
  if (config.effective_memory_strategy() == MemoryStrategy::kExtreme) {
    faults.push_back(
        "memory_strategy is extreme, which keeps state on disk, and offload is not there yet: use aggressive, more "
        "ranks "
        "or shards");
  }
}

}  // namespace

const FieldList<ThreeDParallelismConfig>& ThreeDParallelismConfig::fields() {
  using Config = ThreeDParallelismConfig;
  static const auto list =
      FieldList<Config>("parallelism")
          .add("dp", &Config::dp_,
               "copies or shards of the model, each with its own part of the batch; 0: what the ranks allow")
          .add("tp", &Config::tp_, "ranks that share each layer")
          .add("pp", &Config::pp_, "pipeline stages")
          .add("axis_order", &Config::axis_order_, "the axes from the slowest to the fastest")
          .add("num_layers", &Config::num_layers_,
               "layers of the model that are spread over the stages; 0: as many as it has")
          .add("micro_batch_size", &Config::micro_batch_size_, "samples of one forward; 0: all of a rank's at once")
          .add_enum("memory_strategy", &Config::memory_strategy_,
                    {{"basic", MemoryStrategy::kBasic},
                     {"standard", MemoryStrategy::kStandard},
                     {"aggressive", MemoryStrategy::kAggressive},
                     {"extreme", MemoryStrategy::kExtreme}},
                    "what is given up to save memory")
          .add_enum("communication_strategy", &Config::communication_strategy_,
                    {{"allreduce", CommunicationStrategy::kBackend},
                     {"ring", CommunicationStrategy::kRing},
                     {"tree", CommunicationStrategy::kTree},
                     {"hierarchical", CommunicationStrategy::kHierarchical},
                     {"adaptive", CommunicationStrategy::kAdaptive}},
                    "the algorithm of the groups' collectives")
          .add("gradient_checkpointing", &Config::gradient_checkpointing_,
               "raises the memory strategy basic to standard")
          .add("mixed_precision", &Config::mixed_precision_, "compute in bf16 with master weights in fp32")
          .add_enum("pipeline_schedule", &Config::pipeline_schedule_, pipeline_schedule_names(),
                    "the order in which micro-batches pass through the stages")
          .add("memory_limit_bytes", &Config::memory_limit_bytes_, "what a rank may use of its device; 0: no limit")
          .add("communication_timeout", &Config::communication_timeout_,
               "how long a call in a group may take; 0: as in the world");
  return list;
}

ThreeDParallelismConfig ThreeDParallelismConfig::for_world(int world_size) const {
  ThreeDParallelismConfig config = *this;
  if (dp_ != 0 || tp_ < 1 || pp_ < 1 || world_size < 1 || world_size % (tp_ * pp_) != 0) return config;
  return config.dp(world_size / (tp_ * pp_));
}

std::vector<std::string> ThreeDParallelismConfig::faults(int world_size) const {
  const ThreeDParallelismConfig config = for_world(world_size);
  std::vector<std::string> faults;
  add_size_faults(config, world_size, faults);
  add_layer_faults(config, faults);
  add_limit_faults(config, faults);
  std::erase(faults, "");
  return faults;
}

void ThreeDParallelismConfig::validate(int world_size) const {
  throw_if_any("The parallel layout is not possible:", faults(world_size));
}

int ThreeDParallelismConfig::chunks() const { return pp_ > 1 ? default_num_chunks(pipeline_schedule_) : 1; }

MemoryStrategy ThreeDParallelismConfig::effective_memory_strategy() const {
  const bool raise = gradient_checkpointing_ && memory_strategy_ == MemoryStrategy::kBasic;
  return raise ? MemoryStrategy::kStandard : memory_strategy_;
}

std::vector<int> ThreeDParallelismConfig::layers_per_stage() const { return even_layers(num_layers_, pp_); }

std::vector<int> ThreeDParallelismConfig::layers_per_stage(const std::vector<double>& layer_costs) const {
  if (layer_costs.size() != static_cast<std::size_t>(num_layers_)) {
    throw ConfigError(std::to_string(layer_costs.size()) + " layer costs were given for " +
                      std::to_string(num_layers_) + " layers: give one for each layer");
  }
  return balanced_layers(layer_costs, pp_);
}

std::optional<std::string> ThreeDParallelismConfig::uneven_stages_note() const {
  return uneven_layers_note(layers_per_stage());
}

RankMapping ThreeDParallelismConfig::rank_mapping(const Topology& topology) const {
  return RankMapping(sizes(), topology, axis_order_);
}

DeviceMesh make_mesh(const World& world, const ThreeDParallelismConfig& config) {
  config.validate(world.size());
  return DeviceMesh(world, axes_of(config.for_world(world.size())),
                    DeviceMeshOptions()
                        .order(config.axis_order())
                        .strategy(std::string(to_string(config.communication_strategy())))
                        .timeout(config.communication_timeout()));
}

}  // namespace tessera
