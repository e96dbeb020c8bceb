// Bytes that were counted beside bytes that are known.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_memory.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/adamw.h>
#include <tessera/shard/buffer_pool.h>
#include <tessera/shard/partition.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/error_message.h"
#include "support/require.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::require;
using testing::require_equal;

constexpr std::int64_t kVector = 16;  // elements of 64 bytes: parts are whole ones

/// A unit for each weight; the biases stay whole.
struct WideNet : torch::nn::Module {
  WideNet() {
    const std::vector<std::int64_t> widths{96, 97, 91, 128, 64, 96, 10};
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(widths[i], widths[i + 1])));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = layer(x).tanh();
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

FsdpOptions options_of_net() {
  return FsdpOptions().auto_wrap(wrap_by_type<torch::nn::LinearImpl>()).min_num_params(500);
}

/// Where all ranks read one copy, nothing is gathered.
FsdpOptions options_with_gathers() { return options_of_net().shared_copy(false); }

torch::Tensor batch() { return torch::ones({8, 96}); }

/// What a rank holds of the parameters: its share, cut at whole vectors.
std::int64_t share_bytes(const WideNet& net, int rank, int num_ranks) {
  std::int64_t num_elements = 0;
  for (const auto& layer : net.layers) {
    num_elements +=
        Partition(layer->options.in_features() * layer->options.out_features(), num_ranks, kVector).of(rank).size;
    num_elements += layer->options.out_features();
  }
  return num_elements * 4;
}

/// Of the biases.
std::int64_t whole_bytes(const WideNet& net) {
  std::int64_t num_elements = 0;
  for (const auto& layer : net.layers) num_elements += layer->options.out_features();
  return num_elements * 4;
}

/// The share as it would be without padding.
double exact_share(const WideNet& net, int num_ranks) {
  double num_elements = 0;
  for (const auto& layer : net.layers) {
    num_elements += static_cast<double>(layer->options.in_features() * layer->options.out_features()) / num_ranks;
    num_elements += static_cast<double>(layer->options.out_features());
  }
  return num_elements * 4;
}

void require_bytes(std::int64_t found, std::int64_t expected, const std::string& what) {
  require_equal(found, expected,
                what + ": expected " + std::to_string(expected) + " bytes, found " + std::to_string(found));
}

/// The group's own threads may hold what they have sent for a moment longer.
void require_soon(const FsdpMemory& memory, MemoryKind kind, std::int64_t expected, const std::string& what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (memory.live().of(kind) != expected && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  require_bytes(memory.live().of(kind), expected, what);
}

void require_at_most(std::int64_t found, std::int64_t bound, const std::string& what) {
  require(found <= bound,
          what + ": expected at most " + std::to_string(bound) + " bytes, found " + std::to_string(found));
}

struct OptimizerCase {
  std::string name;
  std::int64_t num_copies;  ///< of the parameters, in its state
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<at::Tensor> parameters);
};

std::ostream& operator<<(std::ostream& out, const OptimizerCase& one) { return out << one.name; }

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> made(std::vector<at::Tensor> parameters, const Options& options) {
  return std::make_unique<Optimizer>(std::move(parameters), options);
}

using Parameters = std::vector<at::Tensor>;

class FsdpMemoryOf : public ::testing::TestWithParam<std::tuple<int, OptimizerCase>> {};

TEST_P(FsdpMemoryOf, IsTheShareByteForByte) {
  const auto& [num_ranks, optimizer_case] = GetParam();
  run_threads(num_ranks, [&](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const std::int64_t share = share_bytes(*net, world.rank(), world.size());
    require(static_cast<double>(share) <= exact_share(*net, world.size()) + 64.0 * 6,
            "padding of a vector for each unit");
    const ShardedModel sharded = fully_shard(net, world, options_of_net());
    FsdpMemory memory(sharded);
    const auto optimizer = optimizer_case.make(sharded.parameters());
    std::vector<at::Tensor> kept;
    for (int step = 0; step < 3; ++step) {
      net->forward(batch()).square().mean().backward();
      require_bytes(memory.live().of(MemoryKind::kParameters), share, "parameters");
      require_soon(memory, MemoryKind::kGradients, share, "gradients");
      require_bytes(memory.live().of(MemoryKind::kGathered), 0, "gathered");
      optimizer->step();
      kept.push_back(torch::ones({100}));  // after the step: not the optimizer's
      require_bytes(memory.live().of(MemoryKind::kOptimizer), optimizer_case.num_copies * share, "optimizer");
      optimizer->zero_grad();
      // Units keep the memory of their averages for the next.
      require_bytes(memory.live().of(MemoryKind::kGradients), share - whole_bytes(*net), "gradients that were cleared");
      require_bytes(memory.live().of(MemoryKind::kActivations), static_cast<std::int64_t>(kept.size()) * 400,
                    "the rest");
    }
    // In backward, besides the share: a unit that fills, and two that are being averaged.
    const auto largest = static_cast<std::int64_t>(sharded.statistics().largest_unit_bytes);
    require_at_most(memory.peaks().of(MemoryKind::kGradients), share + 3 * largest, "gradients in backward");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, FsdpMemoryOf,
    ::testing::Combine(
        ::testing::Values(1, 2, 4),
        ::testing::Values(
            OptimizerCase{
                "Sgd", 0,
                [](Parameters p) { return made<torch::optim::SGD>(std::move(p), torch::optim::SGDOptions(0.1)); }},
            OptimizerCase{"Momentum", 1,
                          [](Parameters p) {
                            return made<torch::optim::SGD>(
                                std::move(p), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
                          }},
            OptimizerCase{
                "AdamW", 2,
                [](Parameters p) { return made<torch::optim::AdamW>(std::move(p), torch::optim::AdamWOptions(0.1)); }},
            OptimizerCase{"FusedAdamW", 2,
                          [](Parameters p) { return made<optim::AdamW>(std::move(p), optim::AdamWOptions(0.1)); }},
            OptimizerCase{"Adagrad", 1,
                          [](Parameters p) {
                            return made<torch::optim::Adagrad>(std::move(p), torch::optim::AdagradOptions(0.1));
                          }},
            OptimizerCase{"RmsProp", 1,
                          [](Parameters p) {
                            return made<torch::optim::RMSprop>(std::move(p), torch::optim::RMSpropOptions(0.1));
                          }})),
    [](const auto& one) { return std::get<1>(one.param).name + "On" + std::to_string(std::get<0>(one.param)); });

struct Prefetch {
  std::string name;
  FsdpOptions options;
  std::int64_t depth;
};

std::ostream& operator<<(std::ostream& out, const Prefetch& one) { return out << one.name; }

class GatheredMemory : public ::testing::TestWithParam<std::tuple<int, Prefetch>> {};

TEST_P(GatheredMemory, IsTheUnitInUseAndThoseAhead) {
  const auto& [num_ranks, prefetch] = GetParam();
  run_threads(num_ranks, [&](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const ShardedModel sharded = fully_shard(net, world, prefetch.options);
    FsdpMemory memory(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      net->forward(batch()).square().mean().backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      net->forward(batch());
    }
    const auto largest = static_cast<std::int64_t>(sharded.statistics().largest_unit_bytes);
    const std::int64_t peak = memory.peaks().of(MemoryKind::kGathered);
    require_at_most(peak, (1 + prefetch.depth) * largest, "gathered");
    require_at_most(static_cast<std::int64_t>(sharded.statistics().peak_gathered_bytes), (1 + prefetch.depth) * largest,
                    "gathered since the start");
    require(prefetch.depth == 0 || peak > largest, "something is gathered ahead");
    require_bytes(memory.peaks().of(MemoryKind::kSpare), 0, "buffers go back to where all large blocks come from");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Options, GatheredMemory,
    ::testing::Combine(
        ::testing::Values(2, 4),
        ::testing::Values(
            Prefetch{"Pre", options_with_gathers(), 1},
            Prefetch{"Post", options_with_gathers().backward_prefetch(BackwardPrefetch::kPost), 1},
            Prefetch{"None", options_with_gathers().backward_prefetch(BackwardPrefetch::kNone).forward_prefetch(false),
                     0},
            Prefetch{"FarAhead", options_with_gathers().limit_all_gathers(false), 4})),
    [](const auto& one) { return std::get<1>(one.param).name + "On" + std::to_string(std::get<0>(one.param)); });

TEST(FsdpMemory, TellsPhasesApart) {
  run_threads(2, [](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const ShardedModel sharded = fully_shard(net, world, options_of_net());
    FsdpMemory memory(sharded, 6);
    torch::optim::AdamW optimizer(sharded.parameters(), 0.1);
    const std::int64_t units = share_bytes(*net, world.rank(), world.size()) - whole_bytes(*net);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      if (step > 0) require_soon(memory, MemoryKind::kGradients, units, "gradients that were cleared");
      net->forward(batch()).square().mean().backward();
      optimizer.step();
    }
    {
      const torch::NoGradGuard no_grad;
      net->forward(batch());
    }
    const auto phases = memory.timeline();
    using P = TrainingPhase;
    const std::vector<P> expected{P::kStep, P::kForward, P::kBackward, P::kOther, P::kStep, P::kEvaluation};
    require_equal(phases.size(), expected.size(), "the last six phases are kept");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      require_equal(phases[i].phase, expected[i], "phase " + std::to_string(i) + " is " + name_of(phases[i].phase));
      require(phases[i].seconds >= 0 && phases[i].peak_of_all >= phases[i].at_end.all(), "a phase that makes sense");
    }
    require_equal(memory.num_phases(), 10, "the first four were dropped");
    const std::int64_t kept = 8 * (97 + 91 + 128 + 64 + 96 + 10) * 4;  // results of layers, for backward
    const std::int64_t input = 8 * 96 * 4;
    require(phases[1].peaks.of(MemoryKind::kActivations) >= kept, "forward keeps activations");
    require(phases[2].at_end.of(MemoryKind::kActivations) <= input + 1024,
            "backward has freed them, but for the result");
    require_bytes(phases[1].peaks.of(MemoryKind::kGradients), units, "forward has the memory of the next averages");
    require(phases[5].peaks.of(MemoryKind::kActivations) < kept, "evaluation keeps nothing");
    require(memory.text().find("evaluation") != std::string::npos, "the table");
  });
}

TEST(FsdpMemory, CountsEachRankThatIsAThreadByItself) {
  run_threads(4, [](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const ShardedModel sharded = fully_shard(net, world, options_of_net());
    const FsdpMemory memory(sharded);
    const at::Tensor mine = torch::ones({1000 * (world.rank() + 1)});
    require_bytes(memory.live().of(MemoryKind::kActivations), 4000 * (world.rank() + 1), "this rank's");
  });
}

TEST(FsdpMemory, CountsFromBeforeTheFirstBackward) {
  run_threads(1, [](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const ShardedModel sharded = fully_shard(net, world, options_of_net());
    net->forward(batch()).square().mean().backward();
    EXPECT_THAT(testing::message_of<ConfigError>([&] { const FsdpMemory late(sharded); }),
                HasSubstr("memory is counted from before the first backward"));
  });
}

TEST(FsdpMemory, OfModulesLargerThanUnitsMayBeIsThatOfUnits) {
  run_threads(2, [](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const auto options = options_with_gathers().auto_wrap(wrap_none()).max_unit_bytes(40'000);
    const ShardedModel sharded = fully_shard(net, world, options);
    FsdpMemory memory(sharded);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net->forward(batch()).square().mean().backward();
      optimizer.step();
    }
    // 37248, 35308, 46592, 32768, 24576 + 3840: what comes after another and fits is with it.
    require_equal(sharded.parameters().size(), 5 + net->layers.size(), "units, and biases that stay whole");
    require_bytes(static_cast<std::int64_t>(sharded.statistics().largest_unit_bytes), 128 * 91 * 4, "the largest unit");
    require_at_most(memory.peaks().of(MemoryKind::kGathered), 2 * 128 * 91 * 4, "gathered");
  });
}

TEST(FsdpMemory, OfModulesThatAreOneUnitIsTheirs) {
  run_threads(2, [](const World& world) {
    const auto net = std::make_shared<WideNet>();
    const auto options = options_with_gathers().auto_wrap(wrap_none()).max_unit_bytes(0);
    require_equal(fully_shard(net, world, options).parameters().size(), 1 + net->layers.size(), "one unit");
  });
}

TEST(BufferPool, SaysThatThereIsNoMemory) {
  for (BufferPool pool : {BufferPool(host_pages, 0), BufferPool::that_keeps_nothing(host_pages, c10::kCPU)}) {
    EXPECT_THAT(testing::message_of<StorageError>([&] { pool.lend(std::size_t{1} << 60); }),
                HasSubstr("bytes of memory to gather parameters into"));
    EXPECT_EQ(pool.lent_bytes(), 0U);
    EXPECT_EQ(pool.held_bytes(), 0U);
  }
}

TEST(BufferPool, KeepsBuffersOrNot) {
  BufferPool keeps(host_pages, 256);
  const void* const first = keeps.lend(100).get();
  EXPECT_EQ(keeps.held_bytes(), 256U);
  EXPECT_EQ(keeps.lend(200).get(), first);
  BufferPool does_not = BufferPool::that_keeps_nothing(host_pages, c10::kCPU);
  {
    const c10::DataPtr lent = does_not.lend(100);
    EXPECT_EQ(does_not.lent_bytes(), 100U);
    EXPECT_EQ(does_not.held_bytes(), 100U);
  }
  does_not.lend(0);  // has a byte, of which none is lent
  EXPECT_EQ(does_not.lent_bytes(), 0U);
  EXPECT_EQ(does_not.held_bytes(), 0U);
  EXPECT_EQ(does_not.peak_bytes(), 100U);
}

// Autograd's threads, and those of a group, let go of gathered parameters too.
TEST(BufferPool, IsGivenBackToFromEveryThread) {
  BufferPool pool(host_pages, 256);
  const auto lend_and_give_back = [&pool] {
    for (int i = 0; i < 5000; ++i) {
      const c10::DataPtr first = pool.lend(256);
      const c10::DataPtr second = pool.lend(100);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(lend_and_give_back);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.lent_bytes(), 0U);
  EXPECT_LE(pool.peak_bytes(), 4U * 356U);
  EXPECT_LE(pool.held_bytes(), 8U * 256U);
}

}  // namespace
}  // namespace tessera
