#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/communicator.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distributed_data_parallel.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/tensor_parallel/tensor_parallel.h>
#include <tessera/train/training_state.h>

#include <torch/torch.h>

#include <optional>
#include <set>

#include "property/config.h"
#include "property/scaling.h"
#include "property/user.h"
#include "support/temporary_folder.h"
#include "tensor_parallel/random_trees/random_plan.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// What rank 0 broadcasts at the start must replace this.
NodePtr model_of_rank(std::uint64_t seed, const Config& config, int rank) {
  NodePtr model = make_model(seed, config, /*dense=*/false);
  const bool init_sync = config.is_ddp() ? config.ddp.init_sync() : config.fsdp.init_sync();
  if (rank == 0 || !init_sync) return model;
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + rank);
  return model;
}

/// The ranks of a program, which share layers and batches.
struct RankGroups {
  RankGroups(const Config& config, const Communicator& comm)
      : all(comm),
        sharing_layers(comm.split_by([&](int rank) { return rank / config.tp; }, "tp")),
        with_batches(config.tp == 1 ? comm : comm.split_by([&](int rank) { return rank % config.tp; }, "dp")) {}

  Communicator all;
  Communicator sharing_layers;
  Communicator with_batches;
};

/// Null: each rank has whole layers.
std::optional<TensorParallelModel> cut_layers(std::uint64_t seed, const Config& config, const NodePtr& model,
                                              const RankGroups& groups) {
  if (config.tp == 1) return std::nullopt;
  return tensor_parallel(std::static_pointer_cast<torch::nn::Module>(model), groups.sharing_layers,
                         make_random_plan(*model, seed, /*cuts_buffers=*/false));
}

/// What a rank has of a tensor that may be cut, without asking others.
Tensor local_of(const Tensor& tensor) { return intercept::held_part(tensor).detach(); }

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

/// What is the same for a rank however its model is spread.
class RankTools {
 public:
  explicit RankTools(const RankGroups& groups)
      : comm_(groups.all), with_batches_(groups.with_batches), scaler_(new_scaler()) {}

  /// Of the batches.
  int part() const { return with_batches_.rank(); }
  const Communicator& with_batches() const { return with_batches_; }

  double scale() const { return scaler_.current_scale(); }
  bool step_scaled(torch::optim::Optimizer& optimizer) {
    const bool stepped = scaler_.step(optimizer);
    scaler_.update();
    return stepped;
  }
  void begin_scaling() { scaler_ = new_scaler(); }

  template <class Model>
  void save(const Model& model, torch::optim::Optimizer& optimizer) {
    if (!folder_) make_folder();
    TrainingState state(comm_);
    state.model(model).optimizer(optimizer);
    const SaveReport report = folder_->save(num_saved_ + 1, state.capture());
    ++num_saved_;
    if (!report.saved) throw std::runtime_error("the checkpoint was not saved: " + report.error);
  }
  bool has_saved() const { return num_saved_ > 0; }
  template <class Model>
  void load(const Model& model, torch::optim::Optimizer& optimizer) {
    TrainingState state(comm_);
    state.model(model).optimizer(optimizer);
    folder_->load_newest([&](const SavedStep& step) { state.restore(step); });
  }

  /// Calls that do not match, as a program with a mistake makes them: refused, and the group works as before.
  void mismatch(std::int64_t way) const {
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

  double sum_in_half(const std::function<double(int rank)>& value) const {
    const Communicator half = with_batches_.split_by([](int rank) { return rank % 2; });
    const Tensor sum = torch::full({}, value(part()), torch::kDouble);
    half.all_reduce(sum);
    return sum.item<double>();
  }

 private:
  void require_group_works(int first) const {
    const Tensor all = comm_.all_gather(torch::full({1}, first + comm_.rank(), torch::kInt));
    for (int rank = 0; rank < comm_.size(); ++rank) {
      if (all[rank].item<int>() == first + rank) continue;
      throw std::runtime_error("after calls that did not match, all_gather gives another call's values");
    }
  }
  GradScaler new_scaler() const {
    return GradScaler(comm_, GradScalerOptions().init_scale(kInitialScale).growth_interval(kGrowthInterval));
  }
  void make_folder() {
    if (comm_.rank() == 0) on_disk_.emplace();
    const std::string path = broadcast_text(comm_, on_disk_ ? on_disk_->path().string() : "", 0);
    folder_.emplace(path, comm_, CheckpointOptions().keep_last(1));
  }

  Communicator comm_;
  Communicator with_batches_;
  GradScaler scaler_;
  std::optional<TemporaryFolder> on_disk_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t num_saved_ = 0;
};

class DdpUser : public WholeUser {
 public:
  DdpUser(std::uint64_t seed, const Config& config, const RankGroups& groups)
      : WholeUser(model_of_rank(seed, config, groups.all.rank()), config.tp > 1),
        tools_(groups),
        config_(config),
        cut_(cut_layers(seed, config, model_, groups)) {
    if (config.keeps_views) kept = early_views_of(*model_);
    begin();
  }

  Tensor forward(const Tensor& x, const Batch& batch) override {
    return wrapper_ ? wrapper_->forward(x, batch) : model_->forward(x, batch);
  }
  void for_each_part(const std::function<void(int part)>& run) override { run(tools_.part()); }
  double share() const override { return 1; }
  std::shared_ptr<void> without_sync() override { return std::make_shared<NoSync>(ddp()); }
  std::shared_ptr<PromisedGradients> promise_gradients() override { return std::make_shared<PromisedGradients>(ddp()); }
  void begin_again() override {
    ddp_.reset();
    wrapper_.reset();
    begin();
  }
  void resize_buckets(std::int64_t num_bytes) override { ddp().set_bucket_bytes(num_bytes); }
  std::shared_ptr<void> gather(bool write_back) override {
    if (!cut_) return nullptr;
    return std::make_shared<Whole>(ddp(), GatherOptions().write_back(write_back));
  }
  double clip(double max_norm) override { return clip_grad_norm(ddp(), max_norm); }

  double scale() const override { return tools_.scale(); }
  bool step_scaled() override { return tools_.step_scaled(*optimizer_); }
  void begin_scaling() override { tools_.begin_scaling(); }
  void save_checkpoint() override {
    tools_.save(ddp(), *optimizer_);
    way_saved_ = way_of_optimizer();
  }
  void load_checkpoint() override {
    if (!tools_.has_saved()) return;
    make_optimizer(way_saved_);
    tools_.load(ddp(), *optimizer_);
  }
  void train_joined(const std::function<int(int part)>& num_batches, bool divide_by_initial_size,
                    const std::function<void(int part, int index)>& pass) override {
    Join join = ddp().join(divide_by_initial_size);
    const int count = num_batches(tools_.part());
    for (int index = 0; index < count; ++index) {
      optimizer_->zero_grad();
      pass(tools_.part(), index);
      optimizer_->step();
    }
    join.finish();
  }
  void mismatch(std::int64_t way) override { tools_.mismatch(way); }
  double sum_in_half(int /*part*/, const std::function<double(int rank)>& value) override {
    return tools_.sum_in_half(value);
  }

 private:
  const DistributedModel& ddp() const { return wrapper_ ? wrapper_->handle() : *ddp_; }
  void begin() {
    DdpOptions options = config_.ddp;
    if (config_.has_hook) options.hook(std::make_shared<MeanHook>());
    if (config_.is_wrapped) {
      wrapper_.emplace(model_, tools_.with_batches(), options);
    } else {
      ddp_.emplace(distribute(std::static_pointer_cast<torch::nn::Module>(model_), tools_.with_batches(), options));
    }
  }

  RankTools tools_;
  Config config_;
  std::optional<TensorParallelModel> cut_;
  std::optional<DistributedModel> ddp_;
  std::optional<DistributedDataParallel<Node>> wrapper_;
  std::int64_t way_saved_ = 0;
};

class FsdpUser : public User {
 public:
  FsdpUser(std::uint64_t seed, const Config& config, const RankGroups& groups)
      : User(model_of_rank(seed, config, groups.all.rank()), config.tp > 1),
        early_views_(config.keeps_views ? early_views_of(*model_) : std::vector<Tensor>{}),
        tools_(groups),
        cut_(cut_layers(seed, config, model_, groups)),
        sharded_(shard(config)) {
    kept = std::move(early_views_);
  }

  Tensor forward(const Tensor& x, const Batch& batch) override { return model_->forward(x, batch); }
  void for_each_part(const std::function<void(int part)>& run) override { run(tools_.part()); }
  double share() const override { return 1; }
  std::vector<std::pair<std::string, Tensor>> trained() const override { return sharded_.named_parameters(); }
  std::shared_ptr<void> without_sync() override { return std::make_shared<NoSync>(sharded_); }
  std::shared_ptr<PromisedGradients> promise_gradients() override {
    return std::make_shared<PromisedGradients>(sharded_);
  }
  std::shared_ptr<void> gather(bool write_back) override {
    return std::make_shared<Whole>(sharded_, GatherOptions().write_back(write_back));
  }
  double clip(double max_norm) override { return clip_grad_norm(sharded_, max_norm); }
  std::map<std::string, Tensor> full_state() override {
    if (!cut_) return sharded_.full_state_dict();
    const Whole whole(sharded_);
    return whole_state_of(*model_);
  }
  void load(const std::map<std::string, Tensor>& state) override {
    if (!cut_) return sharded_.load_full_state_dict(state);
    const Whole whole(sharded_, GatherOptions().write_back(true));
    load_whole_state(*model_, state);
  }
  std::vector<Piece> pieces() override {
    const torch::NoGradGuard no_grad;  // or it would count as a forward
    std::vector<Piece> pieces;
    const auto of_model = model_->named_parameters();
    std::set<std::string> known;
    for (const TrainedTensor& trained : sharded_.trained()) {
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
        for (const auto& [name, tensor] : state_of(*optimizer_, trained.tensor)) piece.state[name] = held(tensor);
        pieces.push_back(std::move(piece));
      }
    }
    for (const auto& [name, slice] : sharded_.sharded_state_dict()) {
      if (!slice.is_buffer && !known.contains(name))
        pieces.push_back({name, slice.slice, local_of(slice.values).flatten(), {}, {}});
    }
    return pieces;
  }
  void begin_again() override {}

  double scale() const override { return tools_.scale(); }
  bool step_scaled() override { return tools_.step_scaled(*optimizer_); }
  void begin_scaling() override { tools_.begin_scaling(); }
  void save_checkpoint() override {
    tools_.save(sharded_, *optimizer_);
    way_saved_ = way_of_optimizer();
  }
  void load_checkpoint() override {
    if (!tools_.has_saved()) return;
    make_optimizer(way_saved_);
    tools_.load(sharded_, *optimizer_);
  }
  void train_joined(const std::function<int(int part)>& /*num_batches*/, bool /*divide_by_initial_size*/,
                    const std::function<void(int part, int index)>& /*pass*/) override {
    throw std::logic_error("sharded models have no join()");
  }
  void mismatch(std::int64_t way) override { tools_.mismatch(way); }
  double sum_in_half(int /*part*/, const std::function<double(int rank)>& value) override {
    return tools_.sum_in_half(value);
  }

 private:
  static FsdpOptions options_of(const Config& config) {
    FsdpOptions options = config.fsdp;
    return options.auto_wrap(config.wrap_elements > 0 ? wrap_by_size(config.wrap_elements) : wrap_none());
  }
  ShardedModel shard(const Config& config) const {
    const auto model = std::static_pointer_cast<torch::nn::Module>(model_);
    if (config.num_replicas == 1) return fully_shard(model, tools_.with_batches(), options_of(config));
    const int num_shards = config.num_ranks / config.num_replicas;
    const auto shards = tools_.with_batches().split_by([&](int rank) { return rank / num_shards; });
    const auto replicas = tools_.with_batches().split_by([&](int rank) { return rank % num_shards; });
    return fully_shard(model, shards, replicas, options_of(config));
  }

  std::vector<Tensor> early_views_;
  RankTools tools_;
  std::optional<TensorParallelModel> cut_;
  ShardedModel sharded_;
  std::int64_t way_saved_ = 0;
};

}  // namespace

std::unique_ptr<User> make_on_rank(std::uint64_t seed, const Config& config, const Communicator& comm) {
  const RankGroups groups(config, comm);
  if (config.is_ddp()) return std::make_unique<DdpUser>(seed, config, groups);
  return std::make_unique<FsdpUser>(seed, config, groups);
}

}  // namespace tessera::testing
