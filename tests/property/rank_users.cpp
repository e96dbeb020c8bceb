#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/torch.h>

#include <optional>
#include <set>

#include "fsdp/random_models/random_model.h"
#include "property/config.h"
#include "property/user.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// What rank 0 broadcasts at the start must replace this.
NodePtr model_of_rank(std::uint64_t seed, int rank, bool init_sync) {
  NodePtr model = make_random_model(seed);
  if (rank == 0 || !init_sync) return model;
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + rank);
  return model;
}

class DdpUser : public WholeUser {
 public:
  DdpUser(std::uint64_t seed, const Config& config, const Communicator& comm)
      : WholeUser(model_of_rank(seed, comm.rank(), config.ddp.init_sync())), comm_(comm), options_(config.ddp) {
    ddp_.emplace(distribute(std::static_pointer_cast<torch::nn::Module>(model_), comm_, options_));
  }

  void for_each_part(const std::function<void(int part)>& run) override { run(comm_.rank()); }
  double share() const override { return 1; }
  std::shared_ptr<void> without_sync() override { return std::make_shared<NoSync>(ddp_->state()); }
  void begin_again() override {
    ddp_.reset();
    ddp_.emplace(distribute(std::static_pointer_cast<torch::nn::Module>(model_), comm_, options_));
  }
  void resize_buckets(std::int64_t num_bytes) override { ddp_->set_bucket_bytes(num_bytes); }

 private:
  Communicator comm_;
  DdpOptions options_;
  std::optional<DistributedModel> ddp_;
};

class FsdpUser : public User {
 public:
  FsdpUser(std::uint64_t seed, const Config& config, const Communicator& comm)
      : User(model_of_rank(seed, comm.rank(), config.fsdp.init_sync())),
        comm_(comm),
        sharded_(fully_shard(std::static_pointer_cast<torch::nn::Module>(model_), comm_, config.fsdp)) {}

  void for_each_part(const std::function<void(int part)>& run) override { run(comm_.rank()); }
  double share() const override { return 1; }
  std::vector<std::pair<std::string, Tensor>> trained() const override { return sharded_.named_parameters(); }
  std::shared_ptr<void> without_sync() override { return std::make_shared<ShardedModel::NoSync>(sharded_.state()); }
  std::shared_ptr<void> gather(bool write_back) override {
    return std::make_shared<ShardedModel::Whole>(sharded_.state(), GatherOptions().write_back(write_back));
  }
  double clip(double max_norm) override { return clip_grad_norm(sharded_, max_norm); }
  std::map<std::string, Tensor> full_state() override { return sharded_.full_state_dict(); }
  void load(const std::map<std::string, Tensor>& state) override { sharded_.load_full_state_dict(state); }
  std::vector<Piece> pieces() override {
    const torch::NoGradGuard no_grad;  // or it would count as a forward
    std::vector<Piece> pieces;
    const auto parameters = sharded_.parameters();
    const auto parts = sharded_.parameter_parts();
    const auto of_model = model_->named_parameters();
    std::set<std::string> known;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (const ParameterPart& part : parts[i]) {
        known.insert(part.name);
        if (part.held.size == 0) continue;
        const auto held = [&](const Tensor& tensor) {
          return tensor.defined() ? tensor.detach().flatten().narrow(0, part.held.start, part.held.size) : tensor;
        };
        // Who has cleared the model's gradients has cleared these; that is done when they are next looked at.
        const bool is_cleared = !of_model[part.name].grad().defined();
        const Tensor gradient = is_cleared ? Tensor() : held(parameters[i].grad());
        Piece piece{part.name, part.start, held(parameters[i]), gradient, {}};
        for (const auto& [name, tensor] : state_of(*optimizer_, parameters[i])) piece.state[name] = held(tensor);
        pieces.push_back(std::move(piece));
      }
    }
    for (const auto& [name, slice] : sharded_.sharded_state_dict()) {
      if (!slice.is_buffer && !known.contains(name)) pieces.push_back({name, slice.start, slice.values, {}, {}});
    }
    return pieces;
  }
  void begin_again() override {}

 private:
  Communicator comm_;
  ShardedModel sharded_;
};

}  // namespace

std::unique_ptr<User> make_on_rank(std::uint64_t seed, const Config& config, const Communicator& comm) {
  if (config.is_ddp()) return std::make_unique<DdpUser>(seed, config, comm);
  return std::make_unique<FsdpUser>(seed, config, comm);
}

}  // namespace tessera::testing
