#include <tessera/core/error.h>
#include <tessera/core/log.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/recompute/memory_strategy.h>
#include <tessera/recompute/recomputable.h>
#include <tessera/shard/layer_names.h>
#include <tessera/train/parallelize.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "train/parallelized_state.h"

namespace tessera {
namespace {

/// The axes along which the options share a model.
std::vector<std::string> axes_of(const ParallelizeOptions& options) {
  auto axes = options.is_hybrid() ? std::vector<std::string>{"replica", "shard"} : std::vector<std::string>{"dp"};
  if (options.pp() > 1) axes.insert(axes.begin(), "pp");
  if (options.tp() > 1) axes.insert(axes.begin(), "tp");
  return axes;
}

/// Ranks along another axis would silently train models of their own.
void require_axes_used(const DeviceMesh& mesh, const std::vector<std::string>& used) {
  for (const AxisSpec& axis : mesh.axes()) {
    if (axis.size == 1 || std::find(used.begin(), used.end(), axis.name) != used.end()) continue;
    throw ConfigError("the mesh has " + std::to_string(axis.size) + " ranks along \"" + axis.name +
                      "\", and these options share the model along \"" + used.back() + "\" alone (rank " +
                      std::to_string(mesh.world_rank()) + "): make the mesh by make_mesh(world, options)");
  }
}

void require_size(const DeviceMesh& mesh, const std::string& axis, int wanted) {
  if (wanted < 2 || mesh[axis].size() == wanted) return;
  throw ConfigError(axis + " is " + std::to_string(wanted) + ", and the mesh has " + std::to_string(mesh[axis].size()) +
                    " ranks along \"" + axis + "\": make the mesh by make_mesh(world, options)");
}

void require_options(const DeviceMesh& mesh, const ParallelizeOptions& options) {
  require_axes_used(mesh, axes_of(options));
  require_size(mesh, "tp", options.tp());
  require_size(mesh, "pp", options.pp());
  const auto faults = options.faults(mesh.size());
  if (faults.empty()) return;
  std::string text = "the model cannot be shared so by " + std::to_string(mesh.size()) + " ranks:";
  for (const std::string& fault : faults) text += "\n  - " + fault;
  throw ConfigError(text + "\n(rank " + std::to_string(mesh.world_rank()) + ")");
}

void require_layers(const torch::nn::Module& model, const ParallelizeOptions& options) {
  const int wanted = options.layout().num_layers();
  if (wanted == 0) return;
  const auto layers = layer_names(model);
  if (std::ssize(layers) == wanted) return;
  throw ConfigError("num_layers is " + std::to_string(wanted) + ", and the model has " + std::to_string(layers.size()) +
                    " elements in its ModuleLists and Sequentials: set num_layers to " + std::to_string(layers.size()) +
                    ", or to 0 to take what the model has");
}

void recompute_layers(torch::nn::Module& model) {
  bool any = false;
  for (const auto& module : model.modules()) {
    auto* const layer = dynamic_cast<Recomputable*>(module.get());
    if (!layer) continue;
    layer->set_recompute(true);
    any = true;
  }
  if (any) return;
  throw ConfigError("recompute is asked for, and no module of " + model.name() +
                    " is Recomputable: nothing would be computed again. Put tessera::recompute() around the layers in "
                    "its forward, use memory_strategy, or leave recompute off");
}

std::optional<TensorParallelModel> cut_layers(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                                              const ParallelizeOptions& options) {
  if (options.tp() == 1) return std::nullopt;
  return tensor_parallel(model, mesh["tp"], TensorPlan::parse(options.tp_plan()), options.tensor());
}

/// By number of layers where the layout tells how many there are, else by number of parameters.
PipelineOptions stages_of(const DeviceMesh& mesh, const ParallelizeOptions& options) {
  const ThreeDParallelismConfig& layout = options.layout();
  PipelineOptions stages = options.pipeline();
  stages.schedule(std::string(to_string(layout.pipeline_schedule()))).reproducible(options.ddp().reproducible());
  if (layout.num_layers() == 0 || !stages.split().empty() || !stages.layers_per_stage().empty()) return stages;
  const auto num_chunks = stages.num_chunks() > 0 ? static_cast<int>(stages.num_chunks()) : layout.chunks();
  const std::vector<int> counts = even_layers(layout.num_layers(), layout.pp() * num_chunks);
  const auto note = uneven_layers_note(counts);
  if (note && mesh.world_rank() == 0) Logger("parallelize", mesh.world_rank()).warning(*note);
  return stages.layers_per_stage({counts.begin(), counts.end()});
}

std::optional<Pipeline> cut_into_stages(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                                        const ParallelizeOptions& options) {
  if (options.pp() == 1) return std::nullopt;
  return pipeline(model, mesh["pp"], stages_of(mesh, options));
}

ParallelModel share(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                    const ParallelizeOptions& options) {
  if (options.data_parallelism() == DataParallelism::kDdp) {
    DdpOptions ddp = options.ddp();
    // Of stages the pipeline adds up the micro-batches.
    if (options.pp() > 1) ddp.reproducible(false).micro_batches(0);
    return distribute(model, mesh["dp"], ddp);
  }
  if (options.is_hybrid()) return fully_shard(model, mesh["shard"], mesh["replica"], options.fsdp());
  return fully_shard(model, mesh["dp"], options.fsdp());
}

/// Gradients come on top of parameters, whatever the program does.
void require_memory(const ParallelModel& model, const DeviceMesh& mesh, std::int64_t limit) {
  if (limit == 0) return;
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  for (const TrainedTensor& one : model.trained()) {
    const auto num_bytes = static_cast<std::int64_t>(intercept::held_part(one.tensor).nbytes());
    parameters += num_bytes;
    if (one.tensor.requires_grad()) gradients += num_bytes;
  }
  at::Tensor most = at::tensor({parameters + gradients}, at::kLong);
  mesh.comm().all_reduce(most, ReduceOp::kMax);
  if (most.item<std::int64_t>() <= limit) return;
  throw ConfigError("a rank needs " + std::to_string(most.item<std::int64_t>()) +
                    " bytes for its parameters and their gradients, and memory_limit_bytes is " +
                    std::to_string(limit) + " (rank " + std::to_string(mesh.world_rank()) + " needs " +
                    std::to_string(parameters) + " and " + std::to_string(gradients) +
                    "): use more ranks along tp or pp, shards (data_parallelism \"fsdp\"), or raise the limit");
}

at::Device device_of(const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

ParallelizedModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                              const ParallelizeOptions& options) {
  if (!model) throw ConfigError("there is no model to parallelize: the pointer is null");
  require_options(mesh, options);
  require_layers(*model, options);
  if (options.recompute()) recompute_layers(*model);

  auto shared = std::make_shared<ParallelizedState>();
  shared->saving = save_memory(model, options.layout().effective_memory_strategy());
  const auto cut = cut_layers(model, mesh, options);  // what follows keeps it
  shared->pipeline = cut_into_stages(model, mesh, options);
  const ParallelModel parallel = share(model, mesh, options);
  require_memory(parallel, mesh, options.layout().memory_limit_bytes());

  const auto batches = options.is_hybrid() ? mesh.sub({"replica", "shard"}) : mesh.sub({"dp"});
  if (batches.size() > 1) shared->batches = batches.comm();
  if (options.tp() > 1) shared->layers = mesh["tp"].comm();
  shared->micro_batch_size = options.layout().micro_batch_size();
  shared->uses_autocast = options.layout().mixed_precision();
  shared->is_reproducible = options.data_parallelism() == DataParallelism::kDdp ? options.ddp().reproducible()
                                                                                : options.fsdp().reproducible();
  shared->num_micro_batches = options.data_parallelism() == DataParallelism::kDdp ? options.ddp().micro_batches()
                                                                                  : options.fsdp().micro_batches();
  shared->device = device_of(*model);
  shared->world_rank = mesh.world_rank();
  return {parallel, std::move(shared)};
}

}  // namespace tessera
