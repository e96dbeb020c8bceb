#include "property/user.h"

#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/named_tensors.h>

#include <torch/torch.h>

#include <numeric>

#include "fsdp/random_models/random_model.h"
#include "property/archives.h"
#include "property/batches.h"
#include "property/config.h"
#include "property/oddities.h"
#include "property/scaling.h"
#include "support/whole_copy.h"
#include "tensor_parallel/random_trees/random_tree.h"

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

/// The second group, added later, learns at half the rate.
template <class Optimizer, class Options>
std::unique_ptr<Optimizer> optimizer_of(const std::vector<std::vector<Tensor>>& groups, Options options) {
  auto optimizer = std::make_unique<Optimizer>(groups.front(), options);
  if (groups.size() < 2) return optimizer;
  options.lr(options.lr() * 0.5);
  optimizer->add_param_group({groups.back(), std::make_unique<Options>(options)});
  return optimizer;
}

class Alone : public WholeUser {
 public:
  Alone(std::uint64_t seed, const Config& config)
      : WholeUser(make_model(seed, config, /*dense=*/true), config),
        num_ranks_(config.num_parts()),
        num_sharing_(config.num_parts()) {}

  void for_each_part(const std::function<void(int part)>& run) override {
    // Every rank begins with the buffers of rank 0, and rank 0's remain.
    std::vector<int> parts(static_cast<std::size_t>(num_ranks_));
    std::iota(parts.begin(), parts.end(), 0);
    run_in_turn(parts, run);
  }
  double share() const override { return 1.0 / num_sharing_; }
  std::shared_ptr<void> without_sync() override { return nullptr; }
  std::shared_ptr<PromisedGradients> promise_gradients() override { return nullptr; }
  void begin_again() override {}

  double scale() const override { return scale_; }
  bool step_scaled() override {
    bool is_finite = true;
    for (const auto& group : optimizer_->param_groups()) {
      for (const Tensor& tensor : group.params()) {
        if (!tensor.grad().defined()) continue;
        tensor.mutable_grad().div_(scale_);
        is_finite = is_finite && tensor.grad().isfinite().all().item<bool>();
      }
    }
    if (is_finite) optimizer_->step();
    num_finite_ = is_finite ? num_finite_ + 1 : 0;
    if (!is_finite) scale_ *= 0.5;
    if (num_finite_ == kGrowthInterval) {
      scale_ *= 2;
      num_finite_ = 0;
    }
    return is_finite;
  }
  void begin_scaling() override {
    scale_ = kInitialScale;
    num_finite_ = 0;
  }

  void save_checkpoint() override {
    saved_ = {full_state(), saved(*optimizer_), way_of_optimizer(), parameters_in(*optimizer_)};
  }
  void load_checkpoint() override {
    if (saved_.weights.empty()) return;
    load(saved_.weights);
    make_optimizer(saved_.way);
    // With other parameters only one without a state loads.
    if (saved_.parameters == parameters_in(*optimizer_)) load_into(*optimizer_, saved_.optimizer);
  }

  void train_joined(const std::function<int(int part)>& num_batches, bool divide_by_initial_size,
                    const std::function<void(int part, int index)>& pass) override {
    const int num_sharing = num_sharing_;
    for (int index = 0;; ++index) {
      std::vector<int> parts;
      for (int part = 0; part < num_ranks_; ++part) {
        if (num_batches(part) > index) parts.push_back(part);
      }
      if (parts.empty()) break;
      num_sharing_ = divide_by_initial_size ? num_sharing : static_cast<int>(parts.size());
      optimizer_->zero_grad();
      run_in_turn(parts, [&](int part) { pass(part, index); });
      optimizer_->step();
    }
    num_sharing_ = num_sharing;
  }

  double sum_in_half(int part, const std::function<double(int rank)>& value) override {
    double sum = 0;
    for (int rank = part % 2; rank < num_ranks_; rank += 2) sum += value(rank);
    return sum;
  }

 private:
  /// Each begins with the buffers of now, and those of the first remain.
  void run_in_turn(const std::vector<int>& parts, const std::function<void(int part)>& run) {
    const auto buffers = model_->buffers();
    const auto at_first = copies_of(buffers);
    run(parts.front());
    const auto of_first = copies_of(buffers);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      put_back(at_first, buffers);
      run(parts[i]);
    }
    put_back(of_first, buffers);
  }

  struct Saved {
    std::map<std::string, Tensor> weights;
    std::string optimizer;
    std::int64_t way = 0;
    std::set<const c10::TensorImpl*> parameters;  // of the optimizer
  };

  int num_ranks_;
  int num_sharing_;
  double scale_ = kInitialScale;
  int num_finite_ = 0;
  Saved saved_;
};

}  // namespace

NodePtr make_model(std::uint64_t seed, const Config& config, bool dense) {
  if (config.tp > 1 || config.has_stages()) return make_random_tree(seed);  // with layers that are worth cutting
  return with_oddity(make_random_model(seed), config.oddity, dense);
}

Tensor whole_of(const Tensor& tensor) { return tensor.defined() ? whole_copy(tensor) : tensor; }

std::set<const c10::TensorImpl*> parameters_in(const torch::optim::Optimizer& optimizer) {
  std::set<const c10::TensorImpl*> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& tensor : group.params()) parameters.insert(tensor.unsafeGetTensorImpl());
  }
  return parameters;
}

std::vector<Tensor> early_views_of(const torch::nn::Module& model) {
  const auto parameters = tessera::parameters_of(model).tensors;
  // flatten() would copy a parameter that lies column by column, and a copy from before rank 0's values is no view.
  return {parameters.front().detach(), parameters.back().data().unsqueeze(0)};
}

void User::make_optimizer(std::int64_t way) {
  way_of_optimizer_ = way;
  // Two groups where the names are those of parameters.
  const bool has_two = way / 4 % 3 == 1;
  std::vector<std::vector<Tensor>> groups(has_two ? 2 : 1);
  for (const auto& [name, tensor] : trained()) {
    if (tensor.requires_grad()) groups[has_two ? name.size() % 2 : 0].push_back(tensor);
  }
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  switch (way % 4) {
    case 0:
      optimizer_ = optimizer_of<torch::optim::SGD>(groups, SGDOptions(0.05));
      break;
    case 1:
      optimizer_ = optimizer_of<torch::optim::SGD>(groups, SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
      break;
    case 2:
      optimizer_ = optimizer_of<torch::optim::Adam>(groups, AdamOptions(0.003));
      break;
    default:
      if (has_files_) {
        optimizer_ = optimizer_of<optim::AdamW>(groups, AdamWOptions(0.003).weight_decay(0.1));
        break;
      }
      optimizer_ = optimizer_of<torch::optim::AdamW>(groups, AdamWOptions(0.003).weight_decay(0.1));
  }
}

User::User(NodePtr model, const Config& config)
    : model_(std::move(model)),
      device_(model_->parameters().front().device()),
      is_cut_(config.tp > 1),
      has_stages_(config.has_stages()),
      has_files_(!config.in_files.empty()) {}

Tensor User::pass(const Pass& pass, int part) {
  const at::AutoGradMode grad_mode(pass.trains);
  const double sum_of_weights = std::accumulate(pass.weights.begin(), pass.weights.end(), 0.0);
  Tensor sum = torch::zeros({}, torch::kDouble);
  for (std::size_t i = 0; i < pass.numbers.size(); ++i) {
    const double its_share = pass.weights[i] / sum_of_weights;
    const Tensor loss = loss_of(*this, pass.numbers[i], part) * pass.factor;
    if (loss.requires_grad()) (loss * its_share * pass.loss_scale * share()).backward();
    sum = sum + loss.detach() * its_share;
  }
  return sum;
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

std::map<std::string, Tensor> whole_state_of(const torch::nn::Module& model) {
  std::map<std::string, Tensor> state;
  for (const auto& entry : model.named_parameters()) state[entry.key()] = whole_of(entry.value());
  for (const auto& entry : model.named_buffers()) state[entry.key()] = whole_of(entry.value());
  return state;
}

void load_whole_state(const torch::nn::Module& model, const std::map<std::string, Tensor>& state) {
  const torch::NoGradGuard no_grad;
  for (auto& entry : model.named_parameters()) entry.value().copy_(state.at(entry.key()));
  for (auto& entry : model.named_buffers()) entry.value().copy_(state.at(entry.key()));
}

std::map<std::string, Tensor> WholeUser::full_state() { return whole_state_of(*model_); }

void WholeUser::load(const std::map<std::string, Tensor>& state) { load_whole_state(*model_, state); }

std::vector<Piece> WholeUser::pieces() {
  const torch::NoGradGuard no_grad;  // or it would count as a forward
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : trained()) {
    const Tensor gradient = tensor.grad().defined() ? whole_of(tensor.grad()).flatten() : Tensor();
    auto state = state_of(*optimizer_, tensor);
    for (auto& [key, value] : state) value = value.defined() ? whole_of(value).flatten() : value;
    pieces.push_back(
        {name, Slice::whole(tensor.sizes().vec()), whole_of(tensor).flatten(), gradient, std::move(state)});
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
  return state;
}

std::unique_ptr<User> make_alone(std::uint64_t seed, const Config& config) {
  auto user = std::make_unique<Alone>(seed, config);
  if (config.keeps_views) user->kept = early_views_of(user->model());
  return user;
}

}  // namespace tessera::testing
