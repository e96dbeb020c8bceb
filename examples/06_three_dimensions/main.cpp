// A model on any number of ranks along three axes, as a file says. See README.md.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>

namespace {

constexpr std::int64_t kNumTokens = 10;
constexpr std::int64_t kLength = 6;
constexpr std::int64_t kWidth = 32;
constexpr std::int64_t kNumSteps = 60;
constexpr std::int64_t kNumSamples = 64;

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
  torch::nn::TransformerEncoder encoder = register_module("encoder", torch::nn::TransformerEncoder(layer, 4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kNumTokens));
};
TORCH_MODULE(Net);

/// This rank's part of batch `number` of a task without end: rows that count up in steps of their own, and what comes
/// next.
torch::Tensor samples_of(std::int64_t number, const tessera::BatchRanks& ranks) {
  const auto share = kNumSamples / ranks.size;
  const auto row = torch::arange(share) + kNumSamples * number + share * ranks.rank;
  const auto first = (row * 7) % kNumTokens;
  const auto step = 1 + torch::div(row, kNumTokens, "floor") % 4;
  return (first.unsqueeze(1) + step.unsqueeze(1) * torch::arange(kLength + 1)) % kNumTokens;
}

torch::Tensor loss_of(Net& net, const torch::Tensor& samples) {
  return torch::nn::functional::cross_entropy(net(samples.narrow(1, 0, kLength)), samples.select(1, kLength));
}

void train(const tessera::ParallelizeOptions& options) {
  torch::manual_seed(1);
  const auto world = tessera::init();
  const auto mesh = tessera::make_mesh(world, options);
  Net net;
  net->to(torch::kDouble);
  const auto parallel = tessera::parallelize(net, mesh, options);
  torch::optim::AdamW optimizer(parallel.parameters(), torch::optim::AdamWOptions(2e-3));
  for (std::int64_t step = 0; step <= kNumSteps; ++step) {
    optimizer.zero_grad();
    const auto samples = samples_of(step, tessera::batch_ranks(mesh));
    const auto loss = parallel.step(samples, [&](const torch::Tensor& micro) { return loss_of(net, micro); });
    tessera::clip_grad_norm(parallel, 1.0);
    optimizer.step();
    if (step % 20 == 0 && world.rank() == 0) {
      std::printf("after %d steps: loss %.4f\n", static_cast<int>(step), loss.item<double>());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    tessera::ParallelizeOptions options;
    if (argc > 1) tessera::load_config(argv[1], options);
    train(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
