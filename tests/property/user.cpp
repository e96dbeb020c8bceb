#include "property/user.h"

#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/named_tensors.h>

#include <torch/torch.h>

#include "fsdp/random_models/random_model.h"

namespace tessera::testing {
namespace {

using at::Tensor;

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

void put_back(const std::vector<Tensor>& values, const std::vector<Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(values[i]);
}

class Alone : public WholeUser {
 public:
  Alone(std::uint64_t seed, int num_ranks) : WholeUser(make_random_model(seed)), num_ranks_(num_ranks) {}

  void for_each_part(const std::function<void(int part)>& run) override {
    // Every rank begins with the buffers of rank 0, and rank 0's remain.
    const auto buffers = model_->buffers();
    const auto at_first = copies_of(buffers);
    run(0);
    const auto of_first_rank = copies_of(buffers);
    for (int part = 1; part < num_ranks_; ++part) {
      put_back(at_first, buffers);
      run(part);
    }
    put_back(of_first_rank, buffers);
  }
  double share() const override { return 1.0 / num_ranks_; }
  std::shared_ptr<void> without_sync() override { return nullptr; }
  void begin_again() override {}

 private:
  int num_ranks_;
};

}  // namespace

void User::make_optimizer(std::int64_t way) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : trained()) tensors.push_back(tensor);
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  switch (way % 4) {
    case 0:
      optimizer_ = std::make_unique<torch::optim::SGD>(tensors, SGDOptions(0.05));
      break;
    case 1:
      optimizer_ = std::make_unique<torch::optim::SGD>(tensors, SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
      break;
    case 2:
      optimizer_ = std::make_unique<torch::optim::Adam>(tensors, AdamOptions(0.003));
      break;
    default:
      optimizer_ = std::make_unique<torch::optim::AdamW>(tensors, AdamWOptions(0.003).weight_decay(0.1));
  }
}

std::vector<std::pair<std::string, Tensor>> WholeUser::trained() const {
  const NamedTensors parameters = tessera::parameters_of(*model_);  // each once, as optimizers want them
  std::vector<std::pair<std::string, Tensor>> named;
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    named.emplace_back(parameters.names[i], parameters.tensors[i]);
  }
  return named;
}

double WholeUser::clip(double max_norm) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : trained()) tensors.push_back(tensor);
  return clip_grad_norm(tensors, max_norm);
}

std::map<std::string, Tensor> WholeUser::full_state() {
  std::map<std::string, Tensor> state;
  for (const auto& entry : model_->named_parameters()) state[entry.key()] = entry.value().detach().clone();
  for (const auto& entry : model_->named_buffers()) state[entry.key()] = entry.value().clone();
  return state;
}

void WholeUser::load(const std::map<std::string, Tensor>& state) {
  const torch::NoGradGuard no_grad;
  for (auto& entry : model_->named_parameters()) entry.value().copy_(state.at(entry.key()));
  for (auto& entry : model_->named_buffers()) entry.value().copy_(state.at(entry.key()));
}

std::vector<Piece> WholeUser::pieces() {
  const torch::NoGradGuard no_grad;  // or it would count as a forward
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : trained()) {
    const Tensor gradient = tensor.grad().defined() ? tensor.grad().flatten() : Tensor();
    pieces.push_back({name, 0, tensor.detach().flatten(), gradient, state_of(*optimizer_, tensor)});
  }
  return pieces;
}

std::map<std::string, Tensor> state_of(const torch::optim::Optimizer& optimizer, const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  std::map<std::string, Tensor> state;
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get())) {
    state["momentum"] = sgd->momentum_buffer();
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(found->second.get())) {
    state["mean"] = adam->exp_avg();
    state["square"] = adam->exp_avg_sq();
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(found->second.get())) {
    state["mean"] = adamw->exp_avg();
    state["square"] = adamw->exp_avg_sq();
  }
  for (auto& [name, tensor] : state) tensor = tensor.defined() ? tensor.flatten() : tensor;
  return state;
}

std::unique_ptr<User> make_alone(std::uint64_t seed, int num_ranks) { return std::make_unique<Alone>(seed, num_ranks); }

}  // namespace tessera::testing
