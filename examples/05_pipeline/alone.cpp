// A training program of LibTorch for one process. main.cpp is the same program for several; README.md shows the diff.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace {

constexpr std::int64_t kNumTokens = 10;
constexpr std::int64_t kLength = 6;
constexpr std::int64_t kWidth = 32;
constexpr std::int64_t kNumSteps = 200;

/// A transformer of torch::nn's own layers: which token comes next?
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = embedding(tokens) + places;
    return head(encoder(x.transpose(0, 1)).select(0, kLength - 1));
  }

  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kNumTokens, kWidth));
  torch::Tensor places = register_parameter("places", torch::randn({kLength, kWidth}) * 0.1);
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0)};
  torch::nn::TransformerEncoder encoder = register_module("encoder", torch::nn::TransformerEncoder(layer, 2));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kNumTokens));
};
TORCH_MODULE(Net);

/// Batch `number` of a task without end: rows that count up in steps of their own, and what comes next.
torch::Tensor samples_of(std::int64_t number) {
  const auto row = torch::arange(64) + 64 * number;
  const auto first = (row * 7) % kNumTokens;
  const auto step = 1 + torch::div(row, kNumTokens, "floor") % 4;
  return (first.unsqueeze(1) + step.unsqueeze(1) * torch::arange(kLength + 1)) % kNumTokens;
}

torch::Tensor loss_of(Net& net, const torch::Tensor& samples) {
  return torch::nn::functional::cross_entropy(net(samples.narrow(1, 0, kLength)), samples.select(1, kLength));
}

void print(std::int64_t step, const torch::Tensor& loss) {
  // A launcher numbers the processes that it starts: one of them prints.
  const char* const rank = std::getenv("RANK");
  if (rank == nullptr || std::string(rank) == "0")
    std::printf("after %d steps: loss %.4f\n", static_cast<int>(step), loss.item<double>());
}

void train() {
  torch::manual_seed(1);
  Net net;
  net->to(torch::kDouble);
  const auto loss_of_net = [&](const torch::Tensor& samples) { return loss_of(net, samples); };
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(2e-3));
  for (std::int64_t step = 0; step <= kNumSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of_net(samples_of(step));
    loss.backward();
    if (step % 50 == 0) print(step, loss);
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
