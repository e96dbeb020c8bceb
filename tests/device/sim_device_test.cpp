#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <sstream>

#include "support/error_message.h"
#include "support/sim_device/sim_device.h"

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;  // NOLINT

class SimDevice : public ::testing::Test {
 protected:
  ~SimDevice() override {
    settings() = Settings();
    synchronise();
  }
};

TEST_F(SimDevice, ComputesWhatTheCpuDoes) {
  const Tensor on_cpu = torch::arange(12, torch::kFloat).view({3, 4});
  const Tensor values = on_cpu.to(device());
  EXPECT_EQ(values.device(), device());
  EXPECT_EQ(values.device().str(), "sim:0");
  EXPECT_TRUE(torch::equal(values.cpu(), on_cpu));
  EXPECT_TRUE(torch::equal((values * 2 + 1).t().contiguous().cpu(), (on_cpu * 2 + 1).t()));
  EXPECT_EQ(values.sum().item<float>(), 66);
  EXPECT_EQ(torch::nonzero(values).size(0), 11);
  EXPECT_EQ(torch::empty({2}, device()).resize_({5, 5}).numel(), 25);
  EXPECT_EQ((values + torch::ones({}, torch::kFloat)).sum().item<float>(), 78);
  std::ostringstream printed;
  printed << values;
  EXPECT_THAT(printed.str(), HasSubstr("simFloatType{3,4}"));
}

TEST_F(SimDevice, KeepsDevicesApart) {
  const Tensor first = torch::ones({2}, device(0));
  const Tensor second = first.to(device(1));
  EXPECT_EQ(second.device(), device(1));
  EXPECT_EQ(second.sum().item<float>(), 2);
  EXPECT_THAT(message_of<c10::Error>([&] { (void)(first + second); }), HasSubstr("to be on the same device"));
  EXPECT_THAT(message_of<c10::Error>([&] { (void)(first + torch::ones({2})); }), HasSubstr("to be on the same device"));
}

TEST_F(SimDevice, EndsAProgramWhoseHostTouchesItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor values = torch::ones({4}, device());
  EXPECT_EXIT(
      {
        volatile float read = *static_cast<const float*>(values.const_data_ptr());
        (void)read;
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(SimDevice, GivesMemoryThatReadsAsNan) {
  EXPECT_TRUE(torch::empty({7}, device()).isnan().all().item<bool>());
  EXPECT_TRUE(torch::empty({7}, torch::dtype(torch::kDouble).device(device())).isnan().all().item<bool>());
}

TEST_F(SimDevice, DoesNotUseAnAddressTwice) {
  std::set<const void*> addresses;
  for (int i = 0; i < 100; ++i) addresses.insert(torch::empty({64}, device()).const_data_ptr());
  EXPECT_EQ(addresses.size(), 100);
}

TEST_F(SimDevice, RunsOutOfMemoryToTheByte) {
  const std::size_t before = bytes_in_use(0);
  settings().bytes_of_device = before + (1 << 20);
  const Tensor half = torch::empty({1 << 17}, device());
  EXPECT_EQ(bytes_in_use(0), before + (1 << 19));
  EXPECT_THAT(message_of<c10::OutOfMemoryError>([] { torch::empty({(1 << 17) + 1}, device()); }),
              AllOf(HasSubstr("sim:0 is out of memory: 524292 bytes were asked for"), HasSubstr("are in use")));
  torch::empty({1 << 17}, device());
  torch::empty({1 << 18}, device(1));
}

TEST_F(SimDevice, WaitsForFreedMemoryBeforeItGivesUp) {
  const c10::impl::VirtualGuardImpl guard(kSim);
  const c10::Stream stream = guard.getNewStream(device());
  settings().duration = [](auto, auto) { return 20ms; };
  settings().bytes_of_device = bytes_in_use(0) + (1 << 20);
  {
    Tensor most = torch::empty({200'000}, device());
    c10::Event event(kSim);
    event.record(guard.getStream(device()));
    event.block(stream);
    const c10::StreamGuard on(stream);
    most.fill_(1);
    most.record_stream(stream);
  }
  EXPECT_EQ(torch::empty({200'000}, device()).numel(), 200'000);
}

TEST_F(SimDevice, RunsBehindTheHost) {
  settings().duration = [](auto, auto) { return 10ms; };
  const auto begin = std::chrono::steady_clock::now();
  Tensor sum = torch::zeros({4}, device());
  for (int i = 0; i < 20; ++i) sum = sum + 1;
  const auto launched = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(sum.sum().item<float>(), 80);
  EXPECT_LT(launched, 100ms);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 210ms);
}

TEST_F(SimDevice, MeasuresTimeByEvents) {
  settings().duration = [](auto, auto) { return 20ms; };
  const c10::Stream stream = c10::impl::VirtualGuardImpl(kSim).getStream(device());
  c10::Event begin(kSim, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(kSim, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  torch::ones({2}, device());
  end.record(stream);
  end.synchronize();
  EXPECT_GE(begin.elapsedTime(end), 20);
}

TEST_F(SimDevice, TellsOfAFailedKernelAtTheNextWait) {
  const Tensor table = torch::ones({4, 4}, device());
  const Tensor wrong = torch::full({2}, 9, torch::dtype(torch::kLong).device(device()));
  const Tensor taken = table.index_select(0, wrong);
  EXPECT_THAT(message_of<c10::Error>([] { synchronise(); }), HasSubstr("out of range"));
  synchronise();
}

TEST_F(SimDevice, PinsMemoryOfTheHost) {
  const Tensor pinned = torch::ones({1000}).pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(torch::ones({4}).is_pinned());
  settings().duration = [](auto, auto) { return 20ms; };
  const Tensor values = pinned.to(device(), /*non_blocking=*/true);
  EXPECT_EQ(pinned[3].item<float>(), 1);  // reading what is read
  synchronise();
  pinned.fill_(2);
  EXPECT_EQ(values.sum().item<float>(), 1000);
}

TEST_F(SimDevice, EndsAProgramThatTouchesWhatACopyUses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor pinned = torch::ones({1000}).pin_memory();
  const auto write_early = [&] {
    settings().duration = [](auto, auto) { return 500ms; };
    const Tensor values = pinned.to(device(), /*non_blocking=*/true);
    pinned.fill_(2);
  };
  EXPECT_EXIT(write_early(), ::testing::KilledBySignal(SIGSEGV), "");
  const auto read_early = [&] {
    settings().duration = [](auto, auto) { return 500ms; };
    const Tensor values = torch::ones({1000}, device());
    pinned.copy_(values, /*non_blocking=*/true);
    return pinned[3].item<float>();
  };
  EXPECT_EXIT(read_early(), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(SimDevice, DrawsTheNumbersOfTheCpu) {
  const auto drawn = [](const c10::Device& on) {
    torch::manual_seed(3);
    const auto options = torch::TensorOptions(on);
    return std::vector<Tensor>{torch::rand({5}, options),
                               torch::randn({40}, options),
                               torch::randperm(9, options),
                               torch::randint(0, 9, {5}, options),
                               torch::empty({6}, options).bernoulli_(0.3),
                               torch::dropout(torch::ones({8}, options), 0.5, true)};
  };
  const auto expected = drawn(at::kCPU);
  const auto found = drawn(device());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].device(), device());
    EXPECT_TRUE(torch::equal(found[i].cpu(), expected[i])) << i;
  }
}

TEST_F(SimDevice, DrawsInTheOrderOfLaunches) {
  const auto drawn = [] {
    torch::manual_seed(3);
    const Tensor chances = torch::full({20}, 0.5, device());
    return torch::cat({torch::bernoulli(chances), torch::multinomial(chances, 5).to(torch::kFloat)}).cpu();
  };
  const Tensor once = drawn();
  settings().longest_delay = 2ms;
  EXPECT_TRUE(torch::equal(drawn(), once));
}

TEST_F(SimDevice, ComputesInLowPrecisionUnderAutocast) {
  const Tensor values = torch::ones({4, 4}, device());
  at::autocast::set_autocast_enabled(kSim, true);
  at::autocast::set_autocast_dtype(kSim, torch::kBFloat16);
  EXPECT_EQ(torch::mm(values, values).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::softmax(torch::mm(values, values), 1).scalar_type(), torch::kFloat);
  at::autocast::set_autocast_enabled(kSim, false);
  at::autocast::clear_cache();
}

TEST_F(SimDevice, ArchivesItsTensors) {
  const Tensor values = torch::rand({3}, device());
  std::stringstream archive;
  torch::save(values, archive);
  Tensor loaded;
  torch::load(loaded, archive);
  EXPECT_EQ(loaded.device(), device());
  EXPECT_TRUE(torch::equal(loaded.cpu(), values.cpu()));
}

TEST_F(SimDevice, TakesAModelByTo) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  const auto parameters = model->parameters();
  model->to(device(1));
  for (const Tensor& one : model->parameters()) EXPECT_EQ(one.device(), device(1));
  for (const Tensor& one : model->buffers()) EXPECT_EQ(one.device(), device(1));
  EXPECT_TRUE(model->parameters()[0].is_same(parameters[0]));
}

/// With one intra-op thread the bits are those of the CPU.
TEST_F(SimDevice, TrainsToTheBitsOfTheCpu) {
  at::set_num_threads(1);
  const auto trained = [](const c10::Device& on) {
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::GELU(),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})), torch::nn::Dropout(0.1),
                                torch::nn::Linear(16, 2));
    const Tensor input = torch::randn({32, 8});
    const Tensor target = torch::randn({32, 2});
    model->to(on);
    torch::manual_seed(2);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int i = 0; i < 5; ++i) {
      optimizer.zero_grad();
      torch::mse_loss(model->forward(input.to(on)), target.to(on)).backward();
      optimizer.step();
    }
    std::vector<Tensor> weights;
    for (const Tensor& one : model->parameters()) weights.push_back(one.detach().cpu());
    return weights;
  };
  const auto expected = trained(at::kCPU);
  settings().longest_delay = 100us;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    settings().delay_seed = seed;
    const auto found = trained(device(1));
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
  }
}

TEST_F(SimDevice, DelaysFollowFromTheSeed) {
  settings().longest_delay = 2ms;
  const auto seconds = [](std::uint64_t seed) {
    settings().delay_seed = seed;
    synchronise();
    const auto begin = std::chrono::steady_clock::now();
    Tensor sum = torch::zeros({4}, device());
    for (int i = 0; i < 50; ++i) sum.add_(1);
    synchronise();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double least = 1;
  double most = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    least = std::min(least, seconds(seed));
    most = std::max(most, seconds(seed));
  }
  EXPECT_LT(least, 0.02);
  EXPECT_GT(most, 0.04);
}

}  // namespace
}  // namespace tessera::testing::sim
