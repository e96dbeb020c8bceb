// A network of two layers trains as well with lossy gradients as with exact ones.
#include <tessera/data_parallel/distribute.h>

#include <torch/torch.h>

#include "data_parallel/hook_case.h"

namespace tessera {
namespace {

constexpr int kNumRanks = 2;
constexpr int kRows = 1024;
constexpr int kHidden = 16;

at::Tensor start_weights(at::IntArrayRef shape, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return (at::randn(shape, generator, at::kFloat) / std::sqrt(static_cast<double>(shape[0]))).requires_grad_();
}

struct Data {
  explicit Data(int rank) {
    auto generator = at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank));
    input = at::randn({kRows, 40}, generator, at::kFloat);
    target = at::tanh(input.narrow(1, 0, 20).sum(1, true) / 3) + at::randn({kRows, 1}, generator, at::kFloat) * 0.5;
  }
  at::Tensor input;
  at::Tensor target;
};

struct Network {
  at::Tensor operator()(const at::Tensor& input) const {
    return at::mm(at::tanh(at::mm(input, weights[0]) + weights[1]), weights[2]);
  }
  std::vector<at::Tensor> weights{start_weights({40, kHidden}, 1), start_weights({kHidden}, 2),
                                  start_weights({kHidden, 1}, 3)};
};

template <class Model>
double loss_over_all_ranks(Model& network) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Data of_rank(rank);
    sum += at::mse_loss(network(of_rank.input), of_rank.target).template item<double>();
  }
  return sum / kNumRanks;
}

double loss_after_training(const std::shared_ptr<GradientHook>& hook, const World& world) {
  Network network;
  const Data data(world.rank());
  torch::optim::SGD optimizer(network.weights, torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    at::mse_loss(network(data.input), data.target).backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& weight : network.weights) gradients.push_back(weight.grad());
    auto bucket = testing::bucket_of(0, gradients);
    testing::reduce(*hook, bucket, world.comm());
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].copy_(bucket.gradients[i]);
    optimizer.step();
  }
  return loss_over_all_ranks(network);
}

struct Module : torch::nn::Module {
  Module() {
    for (std::size_t i = 0; i < network.weights.size(); ++i) {
      register_parameter("weight" + std::to_string(i), network.weights[i]);
    }
  }
  at::Tensor operator()(const at::Tensor& input) const { return network(input); }
  Network network;
};

struct Outcome {
  double loss;
  std::uint64_t num_bytes;
};

Outcome train_distributed(const std::string& compression, const World& world) {
  const auto model = std::make_shared<Module>();
  const auto ddp = distribute(model, world, DdpOptions().compression(compression));
  const Data data(world.rank());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    at::mse_loss((*model)(data.input), data.target).backward();
    optimizer.step();
  }
  return {loss_over_all_ranks(*model), ddp.statistics().num_gradient_bytes};
}

TEST(Compression, EndsWithinTwoPercentOfTheExactLossWithFewerBytes) {
  run_threads(kNumRanks, [&](const World& world) {
    const Outcome exact = train_distributed("none", world);
    for (const std::string name : {"fp16", "bf16", "int8", "powersgd"}) {
      const Outcome lossy = train_distributed(name, world);
      EXPECT_NEAR(lossy.loss / exact.loss, 1, 0.02) << name;
      EXPECT_LT(lossy.num_bytes, exact.num_bytes) << name;
      if (name == "fp16" || name == "bf16") {
        EXPECT_EQ(2 * lossy.num_bytes, exact.num_bytes) << name;
      }
    }
  });
}

TEST(HookTraining, EndsWithinTwoPercentOfTheExactLoss) {
  const std::vector<std::string> lossy{"fp16", "bf16", "int8", "powersgd"};
  run_threads(kNumRanks, [&](const World& world) {
    const double exact = loss_after_training(make_gradient_hook("none"), world);
    EXPECT_LT(exact, 0.25) << "the noise";
    for (const std::string& name : lossy) {
      EXPECT_NEAR(loss_after_training(make_gradient_hook(name), world) / exact, 1, 0.02) << name;
    }
  });
}

}  // namespace
}  // namespace tessera
