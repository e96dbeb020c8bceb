#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/recompute/recomputable.h>
#include <tessera/train/parallelize.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

const FieldList<ParallelizeOptions>& ParallelizeOptions::fields() {
  static const FieldList<ParallelizeOptions> list =
      FieldList<ParallelizeOptions>("parallel")
          .add("recompute", &ParallelizeOptions::recompute_,
               "Layers compute again in backward instead of keeping what it needs.")
          .add_enum("data_parallelism", &ParallelizeOptions::data_parallelism_,
                    {{"ddp", DataParallelism::kDdp}, {"fsdp", DataParallelism::kFsdp}},
                    "Whether each rank has all of the model, or a part of it.")
          .add("shard_ranks", &ParallelizeOptions::shard_ranks_,
               "With hybrid_shard: how many ranks hold one copy of the model together.")
          .add("tp", &ParallelizeOptions::tp_, "How many ranks share each layer.")
          .add("tp_plan", &ParallelizeOptions::tp_plan_,
               "With tp above 1: which layers are cut how, \"blocks.*.mlp.up: columns\".")
          .section("tensor", &ParallelizeOptions::tensor_, TensorParallelOptions::fields())
          .section("ddp", &ParallelizeOptions::ddp_, DdpOptions::fields())
          .section("fsdp", &ParallelizeOptions::fsdp_, FsdpOptions::fields());
  return list;
}

namespace {

bool is_hybrid(const ParallelizeOptions& options) {
  return options.data_parallelism() == DataParallelism::kFsdp &&
         options.fsdp().strategy() == ShardingStrategy::kHybridShard;
}

/// The axes along which the options share a model.
std::vector<std::string> axes_of(const ParallelizeOptions& options) {
  auto axes = is_hybrid(options) ? std::vector<std::string>{"replica", "shard"} : std::vector<std::string>{"dp"};
  if (options.tp() > 1) axes.insert(axes.begin(), "tp");
  return axes;
}

std::optional<TensorParallelModel> cut_layers(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                                              const ParallelizeOptions& options) {
  if (options.tp() == 1) return std::nullopt;
  if (options.tp_plan().empty()) {
    throw ConfigError("tp is " + std::to_string(options.tp()) +
                      ", and tp_plan does not say which layers are cut: name them, as in \"blocks.*.mlp.up: columns\"");
  }
  if (mesh["tp"].size() != options.tp()) {
    throw ConfigError("tp is " + std::to_string(options.tp()) + ", and the mesh has " +
                      std::to_string(mesh["tp"].size()) +
                      " ranks along \"tp\": make the mesh by make_mesh(world, options)");
  }
  return tensor_parallel(model, mesh["tp"], TensorPlan::parse(options.tp_plan()), options.tensor());
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
                    "its forward, or leave recompute off");
}

}  // namespace

DeviceMesh make_mesh(const World& world, const ParallelizeOptions& options) {
  if (options.tp() < 1 || world.size() % options.tp() != 0) {
    throw ConfigError("expected tp to divide the " + std::to_string(world.size()) + " ranks, found " +
                      std::to_string(options.tp()));
  }
  const int num_batches = world.size() / options.tp();
  const int shard_ranks = options.shard_ranks();
  std::vector<AxisSpec> axes{{"dp", num_batches}};
  if (!is_hybrid(options)) {
    if (shard_ranks != 0) throw ConfigError("shard_ranks is for fsdp.strategy \"hybrid_shard\" only");
  } else {
    if (shard_ranks < 1 || num_batches % shard_ranks != 0) {
      throw ConfigError("hybrid_shard: expected shard_ranks to divide the " + std::to_string(num_batches) +
                        " ranks, found " + std::to_string(shard_ranks));
    }
    axes = {{"replica", num_batches / shard_ranks}, {"shard", shard_ranks}};
  }
  // The last axis varies fastest: ranks that share layers are neighbours.
  if (options.tp() > 1) axes.push_back({"tp", options.tp()});
  return DeviceMesh(world, axes);
}

BatchRanks batch_ranks(const DeviceMesh& mesh) {
  BatchRanks ranks;
  const std::vector<int> coordinates = mesh.coordinates();
  for (std::size_t i = 0; i < mesh.axes().size(); ++i) {
    if (mesh.axes()[i].name == "tp") continue;
    ranks.rank = ranks.rank * mesh.axes()[i].size + coordinates[i];
    ranks.size *= mesh.axes()[i].size;
  }
  return ranks;
}

ParallelModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                          const ParallelizeOptions& options) {
  if (!model) throw ConfigError("there is no model to parallelize: the pointer is null");
  require_axes_used(mesh, axes_of(options));
  if (options.recompute()) recompute_layers(*model);
  const auto cut = cut_layers(model, mesh, options);  // what follows keeps it
  if (options.data_parallelism() == DataParallelism::kDdp) return distribute(model, mesh["dp"], options.ddp());
  if (is_hybrid(options)) return fully_shard(model, mesh["shard"], mesh["replica"], options.fsdp());
  return fully_shard(model, mesh["dp"], options.fsdp());
}

}  // namespace tessera
