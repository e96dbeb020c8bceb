#include "property/pipeline_user.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/pipeline.h>

#include <torch/torch.h>

#include <exception>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "property/batches.h"
#include "property/refusals.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// Modules with which stages begin; now and then the library's own choice.
PipelineOptions draw_cut(const Node& model, const Config& config, std::uint64_t seed) {
  Dice dice(seed);
  PipelineOptions options = config.pipeline;
  // Otherwise a rank that goes another way says so when others already wait for what it would have sent.
  if (model.text().find("branch") != std::string::npos) options.dynamic(true);
  const bool has_two = options.schedule() == "interleaved" || options.schedule() == "zb-v";
  const auto needed = static_cast<std::size_t>(config.pp * (has_two ? 2 : 1) - 1);
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) names.push_back(item.key());
  if (names.size() < needed || dice.chance(30)) return options;
  std::set<std::size_t> places;
  while (places.size() < needed) places.insert(static_cast<std::size_t>(dice.below(static_cast<int>(names.size()))));
  std::vector<std::string> split;
  for (const std::size_t place : places) split.push_back(names[place]);
  return options.split(split);
}

Tensor run_pass(const Pipeline& pipe, User& user, const Pass& pass, int part) {
  PipelineBatch batch;
  batch.num_micro_batches = static_cast<int>(pass.numbers.size());
  batch.loss = [&](int i) { return loss_of(user, pass.numbers[static_cast<std::size_t>(i)], part) * pass.factor; };
  batch.tensors = [&](int i) {
    const Batch its = make_batch(user, pass.numbers[static_cast<std::size_t>(i)], part);
    return std::vector{its.x, its.ids, its.switches};
  };
  batch.weights = pass.weights;
  batch.loss_scale = pass.loss_scale;
  return pipe.run(batch, pass.trains);
}

class PipelineUser : public User {
 public:
  PipelineUser(std::uint64_t seed, const Config& config, const RankGroups& groups, std::uint64_t seed_of_cut)
      : User(model_of_rank(seed, config, groups.all.rank()), config),
        tools_(groups),
        config_(config),
        cut_(cut_layers(seed, config, model_, groups)),
        pipe_(pipeline(std::static_pointer_cast<torch::nn::Module>(model_), groups.stages,
                       draw_cut(*model_, config, seed_of_cut))) {}
  /// Apart, so that a cut can be tried.
  void share_stages() {
    const auto model = std::static_pointer_cast<torch::nn::Module>(model_);
    if (config_.is_bare) return;
    if (config_.is_ddp()) copies_.emplace(distribute(model, tools_.with_batches(), ddp_options_of(config_)));
    if (config_.is_fsdp()) shards_.emplace(shard_model(model_, config_, tools_.with_batches()));
  }

  Tensor pass(const Pass& pass, int part) override { return run_pass(pipe_, *this, pass, part); }
  bool is_here(const Tensor& tensor) const override { return !intercept::is_elsewhere(tensor); }

  void for_each_part(const std::function<void(int part)>& run) override { run(tools_.part()); }
  double share() const override { return 1; }
  std::vector<std::pair<std::string, Tensor>> trained() const override { return handle().named_parameters(); }
  std::shared_ptr<void> without_sync() override { return std::make_shared<NoSync>(handle()); }
  std::shared_ptr<PromisedGradients> promise_gradients() override {
    return std::make_shared<PromisedGradients>(handle());
  }
  std::shared_ptr<void> gather(bool write_back) override {
    return std::make_shared<Whole>(handle(), GatherOptions().write_back(write_back));
  }
  double clip(double max_norm) override { return clip_grad_norm(handle(), max_norm); }
  std::map<std::string, Tensor> full_state() override {
    const Whole whole(handle());
    return whole_state_of(*model_);
  }
  void load(const std::map<std::string, Tensor>& state) override {
    const Whole whole(handle(), GatherOptions().write_back(true));
    load_whole_state(*model_, state);
  }
  std::vector<Piece> pieces() override { return pieces_of(handle(), *optimizer_); }
  void begin_again() override {}
  void resize_buckets(std::int64_t num_bytes) override {
    if (copies_) copies_->set_bucket_bytes(num_bytes);
  }

  double scale() const override { return tools_.scale(); }
  bool step_scaled() override { return tools_.step_scaled(*optimizer_); }
  void begin_scaling() override { tools_.begin_scaling(); }
  void save_checkpoint() override {
    tools_.save(handle(), *optimizer_);
    way_saved_ = way_of_optimizer();
  }
  void load_checkpoint() override {
    if (!tools_.has_saved()) return;
    make_optimizer(way_saved_);
    tools_.load(handle(), *optimizer_);
  }
  void train_joined(const std::function<int(int part)>& /*num_batches*/, bool /*divide_by_initial_size*/,
                    const std::function<void(int part, int index)>& /*pass*/) override {
    throw std::logic_error("a pipeline has no join()");
  }
  void mismatch(std::int64_t way) override { tools_.mismatch(way); }
  double sum_in_half(int /*part*/, const std::function<double(int rank)>& value) override {
    return tools_.sum_in_half(value);
  }

 private:
  ParallelModel handle() const {
    if (copies_) return *copies_;
    if (shards_) return *shards_;
    return pipe_;
  }

  RankTools tools_;
  Config config_;
  std::optional<TensorParallelModel> cut_;
  Pipeline pipe_;
  std::optional<DistributedModel> copies_;
  std::optional<ShardedModel> shards_;
  std::int64_t way_saved_ = 0;
};

/// A random cut may leave a stage without work, and so on: such a pipeline would refuse every step.
bool fits(std::uint64_t seed, const Config& config, const RankGroups& groups, std::uint64_t seed_of_cut) {
  const Tensor fits = torch::ones({1});
  std::exception_ptr defect;
  try {
    PipelineUser tried(seed, config, groups, seed_of_cut);
    groups.all.barrier();  // who makes a model draws random numbers, and threads draw from one generator
    for (const std::int64_t number : {0, 1, 2}) tried.pass({{number}, {1}}, groups.with_batches.rank());
  } catch (const std::exception& error) {
    if (!is_refused_cut(error.what())) defect = std::current_exception();
    fits.zero_();
  }
  groups.all.all_reduce(fits);
  if (defect) std::rethrow_exception(defect);
  return fits.item<float>() == static_cast<float>(groups.all.size());
}

}  // namespace

std::unique_ptr<User> make_on_stages(std::uint64_t seed, const Config& config, const RankGroups& groups) {
  constexpr std::uint64_t kNumTries = 8;
  for (std::uint64_t i = 0; i < kNumTries; ++i) {
    const std::uint64_t seed_of_cut = seed * kNumTries + i;
    if (!fits(seed, config, groups, seed_of_cut)) continue;
    auto user = std::make_unique<PipelineUser>(seed, config, groups, seed_of_cut);
    user->share_stages();
    groups.all.barrier();
    return user;
  }
  throw std::runtime_error(kNoCutFits);
}

}  // namespace tessera::testing
