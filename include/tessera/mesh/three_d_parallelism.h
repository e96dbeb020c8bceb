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

/// A training layout in three dimensions, for `parallelize()`, on which every field acts. Call
/// `validate(world.size())` before anything is built from it; `make_mesh()` and `parallelize()` do.
struct ThreeDParallelismConfig {
  /// Copies of the model, or shards of it (ParallelizeOptions::data_parallelism), each with its own part of the batch.
  /// 0: as many as the ranks allow. Raise it for throughput.
  TORCH_ARG(int, dp) = 1;
  /// Ranks that share each layer. Raise it when a layer is too large or too slow; keep it inside a node.
  TORCH_ARG(int, tp) = 1;
  /// Pipeline stages. Raise it when the model does not fit otherwise; it talks least.
  TORCH_ARG(int, pp) = 1;
  /// The axes from the slowest to the fastest. Change it when tp is to lie inside a node: {"dp", "pp", "tp"}.
  TORCH_ARG(std::vector<std::string>, axis_order) = RankMapping::default_order();
  /// Layers of the model that are spread over the stages: the elements of its `ModuleList`s and `Sequential`s. Another
  /// number than the model has is refused. 0: as many as it has, such that stages have as equal numbers of parameters
  /// as can be, instead of layers.
  TORCH_ARG(int, num_layers) = 24;
  /// Samples of one forward: a rank divides its part of a batch into as many micro-batches as it takes. 0: all at once.
  /// Raise it until kernels are busy.
  TORCH_ARG(int, micro_batch_size) = 1;
  /// Raise it when `memory_limit_bytes` does not suffice, lower it for speed.
  TORCH_ARG(MemoryStrategy, memory_strategy) = MemoryStrategy::kStandard;
  /// The algorithm of the groups' collectives (see CommunicationStrategy).
  TORCH_ARG(CommunicationStrategy, communication_strategy) = CommunicationStrategy::kBackend;
  /// Raises the memory strategy kBasic to kStandard, and never lowers one.
  TORCH_ARG(bool, gradient_checkpointing) = false;
  /// Computes in bf16 with master weights in fp32, by autocast. Turn it on where the hardware has bf16.
  TORCH_ARG(bool, mixed_precision) = false;
  /// Only with pp above 1. kInterleaved and kZeroBubbleV need two layers a stage or more.
  TORCH_ARG(PipelineScheduleKind, pipeline_schedule) = PipelineScheduleKind::kInterleaved;
  /// What a rank may use of its device: 8 GB (of 2^30 bytes). A model whose parameters and gradients alone need more on
  /// a rank is refused. 0: no limit. Set it to what the device has.
  TORCH_ARG(std::int64_t, memory_limit_bytes) = std::int64_t{8} << 30;
  /// How long a call in a group may take. 0: as long as in the world. Raise it for jobs whose ranks drift far apart.
  TORCH_ARG(std::chrono::milliseconds, communication_timeout) = std::chrono::seconds(30);

 public:
  static const FieldList<ThreeDParallelismConfig>& fields();

  ThreeDSizes sizes() const { return {dp_, tp_, pp_}; }

  /// With the size of "dp" that `dp(0)` stands for.
  ThreeDParallelismConfig for_world(int world_size) const;

  /// Everything that is wrong with it, each fault with its fix; empty if nothing is.
  std::vector<std::string> faults(int world_size) const;
  /// Throws ConfigError with all faults at once.
  void validate(int world_size) const;

  /// `memory_strategy`, raised by `gradient_checkpointing`.
  MemoryStrategy effective_memory_strategy() const;

  /// How many layers the stages of each rank hold, by number or by the cost of each layer (one for each of
  /// `num_layers`). Throws ConfigError when there are fewer layers than stages.
  std::vector<int> layers_per_stage() const;
  std::vector<int> layers_per_stage(const std::vector<double>& layer_costs) const;
  /// Stages of each rank of a pipeline, as its schedule has them.
  int chunks() const;
  /// What to tell the user when `layers_per_stage()` is uneven, which is allowed.
  std::optional<std::string> uneven_stages_note() const;

  /// Throws ConfigError when the topology has another number of ranks.
  RankMapping rank_mapping(const Topology& topology) const;
};

/// The mesh {dp, tp, pp} of a config, its groups with the config's communication strategy and timeout. Validates first.
/// Collective: no; as DeviceMesh.
DeviceMesh make_mesh(const World& world, const ThreeDParallelismConfig& config);

}  // namespace tessera
