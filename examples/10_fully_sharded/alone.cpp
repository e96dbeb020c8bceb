// A training program of LibTorch for one process. main.cpp is the same program for several; README.md shows the diff.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace {

constexpr std::int64_t kBatchSize = 128;
constexpr std::int64_t kNumSteps = 200;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(middle(torch::relu(first(x))))); }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 128));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(128, 128));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(128, 1));
};
TORCH_MODULE(Net);

/// Batch `number` of a task without end: rows of two coordinates and the height of a landscape there.
torch::Tensor samples_of(std::int64_t number) {
  const auto index = torch::arange(kBatchSize, torch::kDouble) + static_cast<double>(number * kBatchSize);
  const auto x = torch::frac(index * 0.7548776662466927) * 2 - 1;  // even, and never the same point twice
  const auto y = torch::frac(index * 0.5698402909980532) * 2 - 1;
  return torch::stack({x, y, torch::sin(3 * x) * torch::cos(2 * y)}, 1).to(torch::kFloat);
}

torch::Tensor loss_of(Net& net, const torch::Tensor& samples) {
  return torch::mse_loss(net(samples.narrow(1, 0, 2)), samples.narrow(1, 2, 1));
}

void evaluate(Net& net, std::int64_t step) {
  const torch::NoGradGuard no_grad;
  const double loss = loss_of(net, samples_of(kNumSteps + 1)).item<double>();
  // A launcher numbers the processes that it starts: one of them prints.
  const char* const rank = std::getenv("RANK");
  if (rank == nullptr || std::string(rank) == "0")
    std::printf("after %d steps: loss %.4f\n", static_cast<int>(step), loss);
}

void train() {
  torch::manual_seed(1);
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(5e-4));
  for (std::int64_t step = 0; step <= kNumSteps; ++step) {
    if (step % 50 == 0) evaluate(net, step);
    auto samples = samples_of(step);
    optimizer.zero_grad();
    loss_of(net, samples).backward();
    optimizer.step();
  }
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
