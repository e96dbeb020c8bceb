#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/train/parallelize_options.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

/// With the fields of the layout among its own: they need no table of their own in a file.
class Fields : public FieldList<ParallelizeOptions> {
 public:
  Fields() : FieldList("parallel") {}

  Fields& include(const ThreeDParallelismConfig& (ParallelizeOptions::*read)() const,
                  ParallelizeOptions& (ParallelizeOptions::*write)(const ThreeDParallelismConfig&)) {
    const ParallelizeOptions defaults;
    for (const Field& field : ThreeDParallelismConfig::fields().fields()) {
      auto get = [read, inner = field.get](const void* options) {
        return inner(&(static_cast<const ParallelizeOptions*>(options)->*read)());
      };
      auto set = [read, write, inner = field.set](void* options, const FieldValue& value) {
        auto* const all = static_cast<ParallelizeOptions*>(options);
        ThreeDParallelismConfig layout = (all->*read)();
        inner(&layout, value);
        (all->*write)(layout);
      };
      FieldValue value = get(&defaults);
      append(Field{field.key, field.help, std::move(value), field.choices, std::move(get), std::move(set)});
    }
    return *this;
  }
};

}  // namespace

ThreeDParallelismConfig ParallelizeOptions::default_layout() {
  return ThreeDParallelismConfig()
      .dp(0)
      .num_layers(0)
      .micro_batch_size(0)
      .memory_strategy(MemoryStrategy::kBasic)
      .pipeline_schedule(PipelineScheduleKind::kOneForwardOneBackward)
      .memory_limit_bytes(0)
      .communication_timeout(std::chrono::milliseconds(0));
}

const FieldList<ParallelizeOptions>& ParallelizeOptions::fields() {
  static const FieldList<ParallelizeOptions> list =
      Fields()
          .include(&ParallelizeOptions::layout, &ParallelizeOptions::layout)
          .add_enum("data_parallelism", &ParallelizeOptions::data_parallelism_,
                    {{"ddp", DataParallelism::kDdp}, {"fsdp", DataParallelism::kFsdp}},
                    "Whether each rank has all of the model, or a part of it.")
          .add("shard_ranks", &ParallelizeOptions::shard_ranks_,
               "With hybrid_shard: how many ranks hold one copy of the model together.")
          .add("tp_plan", &ParallelizeOptions::tp_plan_,
               "With tp above 1: which layers are cut how, \"blocks.*.mlp.up: columns\".")
          .add("recompute", &ParallelizeOptions::recompute_,
               "Modules that can compute again in backward instead of keeping what it needs.")
          .section("tensor", &ParallelizeOptions::tensor_, TensorParallelOptions::fields())
          .section("pipeline", &ParallelizeOptions::pipeline_, PipelineOptions::fields())
          .section("ddp", &ParallelizeOptions::ddp_, DdpOptions::fields())
          .section("fsdp", &ParallelizeOptions::fsdp_, FsdpOptions::fields());
  return list;
}

namespace {

using Faults = std::vector<std::string>;

std::string number(std::int64_t value) { return std::to_string(value); }

void add_tensor_faults(const ParallelizeOptions& options, Faults& faults) {
  if (options.tp() > 1 && options.tp_plan().empty()) {
    faults.push_back("tp is " + number(options.tp()) +
                     ", and tp_plan does not say which layers are cut: name them, as in \"blocks.*.mlp.up: columns\"");
  }
  try {
    static_cast<void>(TensorPlan::parse(options.tp_plan()));
  } catch (const ConfigError& error) {
    faults.push_back(std::string("tp_plan: ") + error.what());
  }
}

void add_shard_faults(const ParallelizeOptions& options, int num_batches, Faults& faults) {
  const int shard_ranks = options.shard_ranks();
  if (!options.is_hybrid()) {
    if (shard_ranks != 0) {
      faults.push_back("shard_ranks is for fsdp.strategy \"hybrid_shard\" only, with data_parallelism \"fsdp\": use 0");
    }
  } else if (shard_ranks < 1 || num_batches % shard_ranks != 0) {
    faults.push_back("hybrid_shard: expected shard_ranks to divide the " + number(num_batches) + " ranks, found " +
                     number(shard_ranks));
  }
  const bool is_fsdp = options.data_parallelism() == DataParallelism::kFsdp;
  if (is_fsdp && options.ddp().reproducible()) {
    faults.emplace_back("ddp.reproducible is set, and data_parallelism is fsdp: set fsdp.reproducible");
  }
  if (!is_fsdp && options.fsdp().reproducible()) {
    faults.emplace_back("fsdp.reproducible is set, and data_parallelism is ddp: set ddp.reproducible");
  }
  const bool is_reproducible = is_fsdp ? options.fsdp().reproducible() : options.ddp().reproducible();
  if (is_reproducible && options.tp() > 1) {
    faults.push_back("reproducible is set, and tp is " + number(options.tp()) +
                     ": sums over ranks that share layers have other bits than those of one process; use tp of 1");
  }
  if (is_reproducible && is_fsdp && options.pp() > 1) {
    faults.push_back("fsdp.reproducible is set, and pp is " + number(options.pp()) +
                     ": stages add up gradients along the tree of their copies, so use data_parallelism ddp");
  }
}

void add_memory_faults(const ParallelizeOptions& options, Faults& faults) {
  if (options.recompute() && options.layout().effective_memory_strategy() != MemoryStrategy::kBasic) {
    faults.emplace_back(
        "recompute and memory_strategy both say what is computed again: use memory_strategy basic, or leave recompute "
        "out");
  }
}

/// Also those that have no effect with one stage: a file that is switched to several should not fail then.
void add_cut_faults(const ParallelizeOptions& options, Faults& faults) {
  const PipelineOptions& pipeline = options.pipeline();
  const bool has_chunks = options.layout().pipeline_schedule() == PipelineScheduleKind::kInterleaved;
  if (pipeline.num_chunks() < 0 || (pipeline.num_chunks() > 0 && !has_chunks)) {
    faults.push_back("pipeline.num_chunks is " + number(pipeline.num_chunks()) +
                     ": use 1 or more with pipeline_schedule interleaved, and 0 with others");
  }
  if (pipeline.schedule() != PipelineOptions().schedule()) {
    faults.push_back("pipeline.schedule is " + pipeline.schedule() +
                     ": leave it out, and say it once, in pipeline_schedule");
  }
  if (pipeline.receive_ahead() < 0) {
    faults.push_back("pipeline.receive_ahead is " + number(pipeline.receive_ahead()) + ": use 0 or more");
  }
  if (pipeline.num_checked_steps() < 0) {
    faults.push_back("pipeline.num_checked_steps is " + number(pipeline.num_checked_steps()) + ": use 0 or more");
  }
  if (!pipeline.split().empty() && !pipeline.layers_per_stage().empty()) {
    faults.emplace_back("pipeline.split and pipeline.layers_per_stage are both given: use one of them");
  }
  if (options.pp() < 2) return;
  const std::int64_t num_chunks =
      has_chunks && pipeline.num_chunks() > 0 ? pipeline.num_chunks() : options.layout().chunks();
  const std::int64_t num_stages = options.pp() * num_chunks;
  const auto num_splits = std::ssize(pipeline.split());
  if (num_splits > 0 && num_splits != num_stages - 1) {
    faults.push_back("pipeline.split names " + number(num_splits) + " modules for " + number(num_stages) +
                     " stages: name " + number(num_stages - 1) + ", with which the second and later stages begin");
  }
  const auto& counts = pipeline.layers_per_stage();
  if (counts.empty()) return;
  const int num_layers = options.layout().num_layers();
  if (std::ssize(counts) != num_stages) {
    faults.push_back("pipeline.layers_per_stage has " + number(std::ssize(counts)) + " numbers for " +
                     number(num_stages) + " stages: give one for each");
  } else if (std::ranges::any_of(counts, [](std::int64_t count) { return count < 1; })) {
    faults.emplace_back("pipeline.layers_per_stage has a stage without a layer: give each 1 or more");
  } else if (const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
             num_layers > 0 && sum != num_layers) {
    faults.push_back("pipeline.layers_per_stage has " + number(sum) + " layers, and num_layers is " +
                     number(num_layers) + ": make them equal");
  }
}

}  // namespace

std::vector<std::string> ParallelizeOptions::faults(int world_size) const {
  Faults found = layout_.faults(world_size);
  add_tensor_faults(*this, found);
  const int num_batches = layout_.for_world(world_size).dp();
  if (num_batches > 0) add_shard_faults(*this, num_batches, found);
  add_memory_faults(*this, found);
  add_cut_faults(*this, found);
  return found;
}

DeviceMesh make_mesh(const World& world, const ParallelizeOptions& options) {
  if (const auto faults = options.faults(world.size()); !faults.empty()) {
    std::string text = "the model cannot be shared so by " + std::to_string(world.size()) + " ranks:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  const ThreeDParallelismConfig layout = options.layout().for_world(world.size());
  std::vector<AxisSpec> axes;
  for (const std::string& name : layout.axis_order()) {
    if (name == "dp" && options.is_hybrid()) {
      axes.push_back({"replica", layout.dp() / options.shard_ranks()});
      axes.push_back({"shard", options.shard_ranks()});
    } else if (name == "dp") {
      axes.push_back({"dp", layout.dp()});
    } else if (const int size = name == "tp" ? layout.tp() : layout.pp(); size > 1) {
      axes.push_back({name, size});
    }
  }
  const bool is_own = layout.communication_strategy() != CommunicationStrategy::kBackend;  // else the world's
  return DeviceMesh(world, axes,
                    DeviceMeshOptions()
                        .strategy(is_own ? std::string(to_string(layout.communication_strategy())) : "")
                        .timeout(layout.communication_timeout()));
}

BatchRanks batch_ranks(const DeviceMesh& mesh) {
  BatchRanks ranks;
  const std::vector<int> coordinates = mesh.coordinates();
  for (std::size_t i = 0; i < mesh.axes().size(); ++i) {
    if (mesh.axes()[i].name == "tp" || mesh.axes()[i].name == "pp") continue;
    ranks.rank = ranks.rank * mesh.axes()[i].size + coordinates[i];
    ranks.size *= mesh.axes()[i].size;
  }
  return ranks;
}

}  // namespace tessera
