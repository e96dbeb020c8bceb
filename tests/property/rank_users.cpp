// Ranks that have all of the model's layers. Those that have some: pipeline_user.cpp.
#include <tessera/data_parallel/distributed_data_parallel.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/torch.h>

#include <optional>
#include <stdexcept>

#include "property/config.h"
#include "property/pipeline_user.h"
#include "property/rank_tools.h"
#include "property/user.h"

namespace tessera::testing {
namespace {

using at::Tensor;

class DdpUser : public WholeUser {
 public:
  DdpUser(std::uint64_t seed, const Config& config, const RankGroups& groups)
      : WholeUser(model_of_rank(seed, config, groups.all.rank()), config),
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
    const DdpOptions options = ddp_options_of(config_);
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
      : User(model_of_rank(seed, config, groups.all.rank()), config),
        early_views_(config.keeps_views ? early_views_of(*model_) : std::vector<Tensor>{}),
        tools_(groups),
        cut_(cut_layers(seed, config, model_, groups)),
        offload_(put_in_files(config)),
        sharded_(shard_model(model_, config, tools_.with_batches(), offload_.get())) {
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
  std::vector<Piece> pieces() override { return pieces_of(sharded_, *optimizer_); }
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
  std::vector<Tensor> early_views_;
  RankTools tools_;
  std::optional<TensorParallelModel> cut_;
  std::unique_ptr<Offload> offload_;
  ShardedModel sharded_;
  std::int64_t way_saved_ = 0;
};

}  // namespace

std::unique_ptr<User> make_on_rank(std::uint64_t seed, const Config& config, const Communicator& comm) {
  const RankGroups groups(config, comm);
  if (config.has_stages()) return make_on_stages(seed, config, groups);
  if (config.is_ddp()) return std::make_unique<DdpUser>(seed, config, groups);
  return std::make_unique<FsdpUser>(seed, config, groups);
}

}  // namespace tessera::testing
