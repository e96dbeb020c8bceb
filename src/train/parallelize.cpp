#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/recompute/recomputable.h>
#include <tessera/train/parallelize.h>

#include <torch/nn/module.h>

#include <algorithm>
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
  return is_hybrid(options) ? std::vector<std::string>{"replica", "shard"} : std::vector<std::string>{"dp"};
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
  const int shard_ranks = options.shard_ranks();
  if (!is_hybrid(options)) {
    if (shard_ranks != 0) throw ConfigError("shard_ranks is for fsdp.strategy \"hybrid_shard\" only");
    return DeviceMesh::linear(world, "dp");
  }
  if (shard_ranks < 1 || world.size() % shard_ranks != 0) {
    throw ConfigError("hybrid_shard: expected shard_ranks to divide the " + std::to_string(world.size()) +
                      " ranks, found " + std::to_string(shard_ranks));
  }
  return DeviceMesh(world, {{"replica", world.size() / shard_ranks}, {"shard", shard_ranks}});
}

ParallelModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                          const ParallelizeOptions& options) {
  if (!model) throw ConfigError("there is no model to parallelize: the pointer is null");
  require_axes_used(mesh, axes_of(options));
  if (options.recompute()) recompute_layers(*model);
  if (options.data_parallelism() == DataParallelism::kDdp) return distribute(model, mesh["dp"], options.ddp());
  if (is_hybrid(options)) return fully_shard(model, mesh["shard"], mesh["replica"], options.fsdp());
  return fully_shard(model, mesh["dp"], options.fsdp());
}

}  // namespace tessera
