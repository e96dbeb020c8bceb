#include "property/rank_tools.h"

#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/trained_memory.h>
#include <tessera/train/training_state.h>

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>

#include "property/scaling.h"
#include "tensor_parallel/random_trees/random_plan.h"

namespace tessera::testing {

using at::Tensor;

NodePtr model_of_rank(std::uint64_t seed, const Config& config, int rank) {
  NodePtr model = make_model(seed, config, /*dense=*/false);
  const bool is_shared_synced = config.is_ddp() ? config.ddp.init_sync() : config.fsdp.init_sync();
  const bool init_sync = (config.is_bare || is_shared_synced) && (!config.has_stages() || config.pipeline.init_sync());
  if (!config.device_type.empty()) model->to(torch::Device(config.device_type));
  if (rank == 0 || !init_sync) return model;
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + rank);
  return model;
}

RankGroups::RankGroups(const Config& config, const Communicator& comm)
    : all(comm),
      sharing_layers(comm.split_by([&](int rank) { return rank / config.tp; }, "tp")),
      stages(comm.split_by([&](int rank) { return config.part_of(rank) * config.tp + rank % config.tp; }, "pp")),
      with_batches(config.num_sharing_a_batch() == 1
                       ? comm
                       : comm.split_by([&](int rank) { return rank % config.num_sharing_a_batch(); }, "dp")) {}

std::optional<TensorParallelModel> cut_layers(std::uint64_t seed, const Config& config, const NodePtr& model,
                                              const RankGroups& groups) {
  if (config.tp == 1) return std::nullopt;
  return tensor_parallel(std::static_pointer_cast<torch::nn::Module>(model), groups.sharing_layers,
                         make_random_plan(*model, seed, /*cuts_buffers=*/false));
}

namespace {

/// What a rank has of a tensor that may be cut, without asking others.
Tensor local_of(const Tensor& tensor) { return shard::readable(intercept::held_part(tensor).detach()); }

}  // namespace

std::vector<Piece> pieces_of(const ParallelModel& handle, const torch::optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;  // or it would count as a forward
  std::vector<Piece> pieces;
  const auto of_model = handle.module().named_parameters();
  std::set<std::string> known;
  for (const TrainedTensor& trained : handle.trained()) {
    for (const ParameterPart& part : trained.parts) {
      known.insert(part.name);
      if (part.held.size == 0) continue;
      const auto held = [&](const Tensor& tensor) {
        return tensor.defined() ? local_of(tensor).flatten().narrow(0, part.held.start, part.held.size) : tensor;
      };
      // Who has cleared the model's gradients has cleared these; that is done when they are next looked at.
      const bool is_cleared = !of_model[part.name].grad().defined();
      const Tensor gradient = is_cleared ? Tensor() : held(trained.tensor.grad());
      Piece piece{part.name, part.slice, held(trained.tensor), gradient, {}};
      for (const auto& [name, tensor] : state_of(optimizer, trained.tensor)) piece.state[name] = held(tensor);
      pieces.push_back(std::move(piece));
    }
  }
  for (const StateSlice& one : handle.state_slices()) {
    const bool is_held = of_model.contains(one.name) && one.slice.num_elements() > 0;
    if (is_held && !known.contains(one.name)) {
      pieces.push_back({one.name, one.slice, local_of(one.values).flatten(), {}, {}});
    }
  }
  return pieces;
}

namespace {

FsdpOptions fsdp_options_of(const Config& config) {
  FsdpOptions options = config.fsdp;
  return options.auto_wrap(config.wrap_elements > 0 ? wrap_by_size(config.wrap_elements) : wrap_none());
}

}  // namespace

std::unique_ptr<Offload> put_in_files(const Config& config) {
  if (config.in_files.empty()) return nullptr;
  const auto tier = [&](const char* what) {
    return config.in_files.find(what) == std::string::npos ? Tier::kHost : Tier::kFile;
  };
  TemporaryFolder folder;
  Offload offload(
      OffloadOptions().parameters(tier("parameters")).states(tier("states")).folders({folder.path().string()}));
  return std::make_unique<Offload>(std::move(offload));  // its files have no names, and need no folder any more
}

ShardedModel shard_model(const NodePtr& node, const Config& config, const Communicator& ranks, const Offload* offload) {
  const auto model = std::static_pointer_cast<torch::nn::Module>(node);
  FsdpOptions options = fsdp_options_of(config);
  if (offload) options.flat_sources(offload->sources());
  if (config.num_replicas == 1) return fully_shard(model, ranks, options);
  const int num_shards = config.num_ranks / config.num_replicas;
  const auto shards = ranks.split_by([&](int rank) { return rank / num_shards; });
  const auto replicas = ranks.split_by([&](int rank) { return rank % num_shards; });
  return fully_shard(model, shards, replicas, options);
}

namespace {

/// Averages as no hook does, in a program's own way.
class MeanHook : public GradientHook {
 public:
  std::string name() const override { return "mean"; }
  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    return [flat = bucket.flat, divisor = bucket.divisor, work = comm.all_reduce_async(bucket.flat)]() mutable {
      work.wait();
      return flat / divisor;
    };
  }
};

}  // namespace

DdpOptions ddp_options_of(const Config& config) {
  DdpOptions options = config.ddp;
  if (config.has_hook) options.hook(std::make_shared<MeanHook>());
  return options;
}

RankTools::RankTools(const RankGroups& groups)
    : comm_(groups.all), with_batches_(groups.with_batches), scaler_(new_scaler()) {}

bool RankTools::step_scaled(torch::optim::Optimizer& optimizer) {
  const bool stepped = scaler_.step(optimizer);
  scaler_.update();
  return stepped;
}

void RankTools::save(const ParallelModel& model, torch::optim::Optimizer& optimizer) {
  if (!folder_) make_folder();
  TrainingState state(comm_);
  state.model(model).optimizer(optimizer);
  const SaveReport report = folder_->save(num_saved_ + 1, state.capture());
  ++num_saved_;
  if (!report.saved) throw std::runtime_error("the checkpoint was not saved: " + report.error);
}

void RankTools::load(const ParallelModel& model, torch::optim::Optimizer& optimizer) {
  TrainingState state(comm_);
  state.model(model).optimizer(optimizer);
  folder_->load_newest([&](const SavedStep& step) { state.restore(step); });
}

void RankTools::mismatch(std::int64_t way) const {
  const bool is_noticed = comm_.backend() == "threads" || comm_.backend() == "shm";
  if (comm_.size() == 1 || !is_noticed) return;
  try {
    if (way % 2 == 0) {
      comm_.all_reduce(torch::zeros({2 + comm_.rank()}));
    } else if (comm_.rank() == 0) {
      comm_.all_reduce(torch::zeros({100'000}));
    } else {
      comm_.all_gather(torch::zeros({100'000}));
    }
    throw std::runtime_error("calls that do not match were not refused");
  } catch (const Error&) {
    for (int i = 0; i < 2; ++i) require_group_works(10 * i);
  }
}

double RankTools::sum_in_half(const std::function<double(int rank)>& value) const {
  const Communicator half = with_batches_.split_by([](int rank) { return rank % 2; });
  const Tensor sum = torch::full({}, value(part()), torch::kDouble);
  half.all_reduce(sum);
  return sum.item<double>();
}

void RankTools::require_group_works(int first) const {
  const Tensor all = comm_.all_gather(torch::full({1}, first + comm_.rank(), torch::kInt));
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (all[rank].item<int>() == first + rank) continue;
    throw std::runtime_error("after calls that did not match, all_gather gives another call's values");
  }
}

GradScaler RankTools::new_scaler() const {
  return GradScaler(comm_, GradScalerOptions().init_scale(kInitialScale).growth_interval(kGrowthInterval));
}

void RankTools::make_folder() {
  if (comm_.rank() == 0) on_disk_.emplace();
  const std::string path = broadcast_text(comm_, on_disk_ ? on_disk_->path().string() : "", 0);
  folder_.emplace(path, comm_, CheckpointOptions().keep_last(1));
}

}  // namespace tessera::testing
