// A training program of LibTorch on several processes: the four marked lines distribute it. See README.md.
#include <tessera/tessera.h>  // (1)
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

constexpr std::int64_t kBatchSize = 128;
constexpr std::size_t kNumSteps = 200;
constexpr std::size_t kEvaluateEvery = 50;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(middle(torch::tanh(first(x))))); }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 32));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(32, 32));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Net);

/// Batch `number` of a task without end: rows of two coordinates and the height of a landscape there.
torch::Tensor samples_of(std::size_t number) {
  const auto index = torch::arange(kBatchSize, torch::kDouble) + static_cast<double>(number) * kBatchSize;
  const auto x = torch::frac(index * 0.7548776662466927) * 2 - 1;  // even, and never the same point twice
  const auto y = torch::frac(index * 0.5698402909980532) * 2 - 1;
  return torch::stack({x, y, torch::sin(3 * x) * torch::cos(2 * y)}, 1).to(torch::kFloat);
}

torch::Tensor loss_of(Net& net, const torch::Tensor& samples) {
  return torch::mse_loss(net(samples.narrow(1, 0, 2)), samples.narrow(1, 2, 1));
}

/// What is shown, which is not part of the training: one rank prints, and all compare their weights.
void report(const tessera::World& world, const Net& net, const std::vector<double>& losses) {
  const torch::NoGradGuard no_grad;
  const auto weights = torch::nn::utils::parameters_to_vector(net->parameters());
  const bool same = (world.comm().all_gather(weights.unsqueeze(0)) == weights).all().item<bool>();
  if (world.rank() != 0) return;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    std::printf("after %zu steps: loss %.3f\n", i * kEvaluateEvery, losses[i]);
  }
  std::printf("all ranks hold %s weights\n", same ? "the same" : "different");
}

void train() {
  torch::manual_seed(1);
  auto world = tessera::init();  // (2)
  Net net;
  auto ddp = tessera::distribute(net, world);  // (3)
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (std::size_t step = 0; step <= kNumSteps; ++step) {
    if (step % kEvaluateEvery == 0) {
      const torch::NoGradGuard no_grad;  // an evaluation: on samples that are not trained on
      losses.push_back(loss_of(net, samples_of(kNumSteps + 1)).item<double>());
    }
    auto samples = samples_of(step);
    samples = samples.chunk(world.size()).at(world.rank());  // (4)
    optimizer.zero_grad();
    loss_of(net, samples).backward();
    optimizer.step();
  }
  report(world, net, losses);
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
