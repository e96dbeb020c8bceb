// What the strategies of save_memory() cost and save: the library's GPT-2, forward, backward, and the difference of its
// gradients from those of "basic".
//   bench_memory_strategies [NUM_ROUNDS]
// Prints the guide's tables: bytes that a layer keeps as they were counted and as the formula says, the peak of the
// bytes of tensors, and the processor's time as a multiple of basic's. The rounds take turns.
#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>
#include <tessera/recompute/save_memory.h>

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gpt2/gpt2.h"

namespace bench {
namespace {

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kTokens = 256;
constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kLayers = 6;
constexpr std::array<const char*, 3> kStrategies{"basic", "standard", "aggressive"};
constexpr double kMib = 1024.0 * 1024.0;

std::shared_ptr<tessera::models::Gpt2Impl> make_model(std::int64_t num_layers, double attention_dropout) {
  torch::manual_seed(1);
  auto model = std::make_shared<tessera::models::Gpt2Impl>(tessera::models::Gpt2Config()
                                                               .vocab_size(8192)
                                                               .context(kTokens)
                                                               .width(kWidth)
                                                               .num_layers(num_layers)
                                                               .num_heads(kHeads)
                                                               .dropout(0.1)
                                                               .attention_dropout(attention_dropout));
  for (const at::Tensor& one : model->parameters()) one.mutable_grad() = at::zeros_like(one);
  return model;
}

at::Tensor loss_of(tessera::models::Gpt2Impl& model) {
  torch::manual_seed(2);
  const at::Tensor tokens = at::arange(kBatch * (kTokens + 1)).remainder(8191).view({kBatch, kTokens + 1});
  return model.loss(tokens.narrow(1, 0, kTokens), tokens.narrow(1, 1, kTokens));
}

tessera::MemorySaving saving(const std::shared_ptr<tessera::models::Gpt2Impl>& model, const std::string& strategy) {
  return tessera::save_memory(model, tessera::SaveMemoryOptions().strategy(strategy));
}

struct Bytes {
  std::int64_t kept;
  std::int64_t peak;
};

/// After forward, and at most.
Bytes bytes_of(std::int64_t num_layers, double attention_dropout, const std::string& strategy) {
  const auto model = make_model(num_layers, attention_dropout);
  const auto saved = saving(model, strategy);
  loss_of(*model).backward();  // what is made once is there
  const tessera::intercept::MemoryCount memory;
  const at::Tensor loss = loss_of(*model);
  const std::int64_t kept = memory.live_bytes();
  loss.backward();
  return {kept, memory.peak_bytes()};
}

/// See docs/guides/memory_strategies.md.
double formula(const std::string& strategy, double attention_dropout) {
  const double x = kBatch * kTokens * kWidth * 4.0;
  const double squares = kBatch * kHeads * kTokens * kTokens * 4.0;
  const double norms = kBatch * kTokens * 4 * 4.0;
  const double sums = kBatch * kTokens * kHeads * 4.0;
  const double state = 5056;
  const bool drops = attention_dropout > 0;
  if (strategy == "basic") return 18 * x + norms + (drops ? 3 * squares : sums);
  if (strategy == "standard") return 10 * x + norms + 2 * state + (drops ? squares + state : sums);
  return x + (drops ? 3 : 2) * state;
}

double seconds_of(tessera::models::Gpt2Impl& model) {
  const std::clock_t begin = std::clock();  // of all threads: others on the machine do not count
  loss_of(model).backward();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double difference(const std::string& strategy, double attention_dropout) {
  const auto gradients = [&](const std::string& one) {
    const auto model = make_model(2, attention_dropout);
    model->to(at::kDouble);
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const auto saved = saving(model, one);
    loss_of(*model).backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad());
    return found;
  };
  const auto expected = gradients("basic");
  const auto found = gradients(strategy);
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, (found[i] - expected[i]).abs().max().item<double>());
  }
  return largest;
}

void print_table(double attention_dropout, int num_rounds) {
  const auto model = make_model(kLayers, attention_dropout);
  std::array<std::vector<double>, kStrategies.size()> seconds;
  for (int round = 0; round <= num_rounds; ++round) {
    for (std::size_t i = 0; i < kStrategies.size(); ++i) {
      const auto saved = saving(model, kStrategies[i]);
      const double taken = seconds_of(*model);
      if (round > 0) seconds[i].push_back(taken);  // the first round warms up
    }
  }
  std::printf("GPT-2 of %lld layers of width %lld, %lld tokens, dropout 0.1, in attention %.1f; basic: %.0f ms\n",
              static_cast<long long>(kLayers), static_cast<long long>(kWidth), static_cast<long long>(kBatch * kTokens),
              attention_dropout, 1e3 * median(seconds[0]));
  std::printf("| strategy | kept by a layer, MiB | formula, MiB | peak, MiB | time | difference in fp64 |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < kStrategies.size(); ++i) {
    const Bytes few = bytes_of(kLayers, attention_dropout, kStrategies[i]);
    const Bytes many = bytes_of(2 * kLayers, attention_dropout, kStrategies[i]);
    std::printf("| %s | %.2f | %.2f | %.1f | %.2f | %.1e |\n", kStrategies[i],
                static_cast<double>(many.kept - few.kept) / kLayers / kMib,
                formula(kStrategies[i], attention_dropout) / kMib, static_cast<double>(few.peak) / kMib,
                median(seconds[i]) / median(seconds[0]), difference(kStrategies[i], attention_dropout));
  }
  try {
    const auto saved = saving(model, "extreme");
  } catch (const tessera::ConfigError& error) {
    std::printf("| extreme | %s |\n", error.what());
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    const int num_rounds = argc > 1 ? std::atoi(argv[1]) : 5;
    bench::print_table(0, num_rounds);
    bench::print_table(0.1, num_rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_memory_strategies: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
