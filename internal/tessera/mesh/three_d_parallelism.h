#pragma once

#include <tessera/comm/strategy.h>
#include <tessera/core/options.h>
#include <tessera/mesh/axis_layout.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <torch/arg.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// How many of `num_layers` layers each of `num_stages` pipeline stages holds: counts differ by one at most, the first
/// stages holding more. Throws ConfigError when there are more stages than layers.
std::vector<int> even_layers(int num_layers, int num_stages);

/// Consecutive layers for each stage such that the costliest stage costs as little as possible and, among such, the
/// stages differ least. Costs are relative: times or bytes, all of the same unit. The same costs give the same result
/// on every rank. O(stages * layers^2). Throws ConfigError when there are more stages than layers or a cost is negative
/// or not finite.
std::vector<int> balanced_layers(const std::vector<double>& layer_costs, int num_stages);

/// What to tell the user when the stages hold different numbers of layers; nothing when they are even.
std::optional<std::string> uneven_layers_note(const std::vector<int>& layers_per_stage);

class DeviceMesh;
class World;

/// Ways to save memory. Each saves more, and costs more time, than the one before.
enum class MemoryStrategy {
  kBasic,       ///< nothing: all activations are kept
  kStandard,    ///< the activations of selected operators are recomputed (gradient checkpointing)
  kAggressive,  ///< whole layers are recomputed
  kExtreme,     ///< and state lies on disk
};

/// A training layout in three dimensions. Call `validate(world.size())` before anything is built from it.
///
/// In effect today: the sizes and the axis order (`rank_mapping`, `make_mesh`), the number of layers
/// (`layers_per_stage`), the communication strategy and timeout (the groups of `make_mesh`).
/// Stored, and checked where possible, but without effect until its module exists: micro_batch_size and
/// pipeline_schedule (pipeline), memory_strategy and gradient_checkpointing (recompute, offload), mixed_precision
/// (train), memory_limit_bytes (planner, offload).
struct ThreeDParallelismConfig {
  /// Copies of the model, each on its own part of the batch. Raise it for throughput.
  TORCH_ARG(int, dp) = 1;
  /// Ranks that share each layer. Raise it when a layer is too large or too slow; keep it inside a node.
  TORCH_ARG(int, tp) = 1;
  /// Pipeline stages. Raise it when the model does not fit otherwise; it talks least.
  TORCH_ARG(int, pp) = 1;
  /// The axes from the slowest to the fastest. Change it when tp is to lie inside a node: {"dp", "pp", "tp"}.
  TORCH_ARG(std::vector<std::string>, axis_order) = RankMapping::default_order();
  /// Layers of the model that are spread over the stages.
  TORCH_ARG(int, num_layers) = 24;
  /// Samples that pass through the pipeline together. Raise it until a stage's kernels are busy.
  TORCH_ARG(int, micro_batch_size) = 1;
  /// Raise it when `memory_limit_bytes` does not suffice, lower it for speed.
  TORCH_ARG(MemoryStrategy, memory_strategy) = MemoryStrategy::kStandard;
  /// The algorithm of the groups' collectives (see CommunicationStrategy).
  TORCH_ARG(CommunicationStrategy, communication_strategy) = CommunicationStrategy::kBackend;
  /// Raises the memory strategy kBasic to kStandard, and never lowers one.
  TORCH_ARG(bool, gradient_checkpointing) = false;
  /// Computes in bf16 with master weights in fp32. Turn it on where the hardware has bf16.
  TORCH_ARG(bool, mixed_precision) = false;
  /// Only with pp above 1. kInterleaved and kZeroBubbleV need two layers a stage or more.
  TORCH_ARG(PipelineScheduleKind, pipeline_schedule) = PipelineScheduleKind::kInterleaved;
  /// What a rank may use of its device: 8 GB (of 2^30 bytes). Set it to what the device has.
  TORCH_ARG(std::int64_t, memory_limit_bytes) = std::int64_t{8} << 30;
  /// How long a call in a group may take. Raise it for jobs whose ranks drift far apart.
  TORCH_ARG(std::chrono::milliseconds, communication_timeout) = std::chrono::seconds(30);

 public:
  static const FieldList<ThreeDParallelismConfig>& fields();

  ThreeDSizes sizes() const { return {dp_, tp_, pp_}; }

  /// Throws ConfigError with all faults at once, each with its fix.
  void validate(int world_size) const;

  /// `memory_strategy`, raised by `gradient_checkpointing`.
  MemoryStrategy effective_memory_strategy() const;

  /// How many layers each stage holds, by number or by the cost of each layer (one for each of `num_layers`).
  /// Throws ConfigError when there are fewer layers than stages.
  std::vector<int> layers_per_stage() const;
  std::vector<int> layers_per_stage(const std::vector<double>& layer_costs) const;
  /// What to tell the user when `layers_per_stage()` is uneven, which is allowed.
  std::optional<std::string> uneven_stages_note() const;

  /// Throws ConfigError when the topology has another number of ranks.
  RankMapping rank_mapping(const Topology& topology) const;
};

/// The mesh {dp, tp, pp} of a config, its groups with the config's communication strategy and timeout. Validates first.
/// Collective: no; as DeviceMesh.
DeviceMesh make_mesh(const World& world, const ThreeDParallelismConfig& config);

}  // namespace tessera
