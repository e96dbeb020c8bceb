#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/train/training_state.h>

#include <c10/core/Event.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"
#include "parity/training.h"
#include "support/error_message.h"
#include "support/require.h"

// Losses that are scaled on devices: a device decides whether an update is made, and the host learns of it later.

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kNumSteps = 12;

class ScalersOnDevices : public DeviceTest {};

struct ScaledNet : torch::nn::Module {
  ScaledNet()
      : first(register_module("first", torch::nn::Linear(16, 24))),
        last(register_module("last", torch::nn::Linear(24, 8))) {
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) { return last(torch::tanh(first(x))); }

  torch::nn::Linear first;
  torch::nn::Linear last;
};

/// Steps with a gradient that is not finite, on one rank; the last two are not known when the program asks.
bool is_bad(int step) { return step == 0 || step == 3 || step == 4 || step == 7 || step >= kNumSteps - 2; }

struct Outcome {
  State weights;
  State moments;
  GradScalerState scale;
  std::int64_t num_skipped = 0;
  std::int64_t num_counted = 0;
};

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

std::int64_t count_of(const torch::optim::Optimizer& optimizer, const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  const auto* const state = found == optimizer.state().end()
                                ? nullptr
                                : dynamic_cast<const torch::optim::AdamWParamState*>(found->second.get());
  return state ? state->step() : 0;
}

Outcome train(const World& world, const at::Device& device, const MakeOptimizer& make) {
  const auto model = std::make_shared<ScaledNet>();
  model->to(device);
  const auto sharded = fully_shard(model, world);
  const auto parameters = sharded.parameters();
  const auto optimizer = make(parameters);
  GradScaler scaler(sharded, GradScalerOptions().init_scale(1024).growth_interval(2));
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    const Tensor input = formula({4, 16}, 3.0 * step + world.rank(), torch::kFloat).to(device);
    scaler.scale(model->forward(input).square().mean()).backward();
    if (is_bad(step) && world.rank() == step % world.size()) {
      parameters.front().mutable_grad().view(-1).narrow(0, 0, 1).fill_(kInfinity);
    }
    if (step == 5) parameters.front().mutable_grad() = Tensor();  // a parameter that misses a step
    scaler.step(*optimizer);
    scaler.update();
  }
  Outcome outcome;
  if (auto* const adamw = dynamic_cast<optim::AdamW*>(optimizer.get())) adamw->settle();
  for (const auto& [name, value] : sharded.full_state_dict()) outcome.weights[name] = value.cpu();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = optimizer->state().find(parameters[i].unsafeGetTensorImpl());
    const auto* const state = dynamic_cast<const torch::optim::AdamWParamState*>(found->second.get());
    if (state) outcome.moments["moment " + std::to_string(i)] = state->exp_avg_sq().cpu();
  }
  outcome.scale = scaler.state();
  outcome.num_skipped = scaler.num_skipped();
  outcome.num_counted = count_of(*optimizer, parameters.front());
  return outcome;
}

void require_same(const Outcome& found, const Outcome& expected) {
  require(found.scale == expected.scale, "the scale");
  require_equal(found.num_skipped, expected.num_skipped, "updates that are skipped");
  require_equal(found.num_counted, expected.num_counted, "steps that are counted");
  for (const auto& [name, value] : expected.weights) {
    require(same_values(found.weights.at(name), value, kOtherKernelsTrained), name);
  }
  for (const auto& [name, value] : expected.moments) {
    require(same_values(found.moments.at(name), value, kOtherKernelsTrained), name);
  }
}

void expect_bits_of_the_cpu(const MakeOptimizer& make) {
  std::map<int, Outcome> expected;
  std::mutex mutex;
  run_threads(2, [&](const World& world) {
    Outcome outcome = train(world, at::kCPU, make);
    const std::lock_guard lock(mutex);
    expected[world.rank()] = std::move(outcome);
  });
  EXPECT_EQ(expected[0].num_skipped, 6);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    DeviceTest::delay(seed);
    on_devices(2, [&](const World& world, const at::Device& device) {
      require_same(train(world, device, make), expected.at(world.rank()));
    });
  }
}

std::unique_ptr<torch::optim::Optimizer> adamw_of(std::vector<Tensor> parameters, bool amsgrad) {
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamWOptions(0.05).weight_decay(0.1).amsgrad(amsgrad));
}

TEST_F(ScalersOnDevices, SkipTheUpdatesThatTheCpuSkips) {
  for (const bool amsgrad : {false, true}) {
    expect_bits_of_the_cpu([amsgrad](std::vector<Tensor> parameters) { return adamw_of(parameters, amsgrad); });
  }
}

/// An optimizer that the host steps.
TEST_F(ScalersOnDevices, SkipStepsOfOtherOptimizers) {
  expect_bits_of_the_cpu([](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

/// When the host has launched a step, the device is still busy with it: nothing waited for what it found.
TEST_F(ScalersOnDevices, DoNotWaitForTheDevice) {
  if (!tested::kSimulated) GTEST_SKIP() << "needs kernels that take as long as the test says";
  using namespace std::chrono_literals;  // NOLINT
  on_devices(1, [](const World& world, const at::Device& device) {
    const auto model = std::make_shared<ScaledNet>();
    model->to(device);
    optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.01));
    GradScaler scaler(world, GradScalerOptions().init_scale(8));
    const Tensor input = torch::ones({2, 16}, device);
    tested::kernels_take([](auto, auto) { return 1ms; });
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      scaler.scale(model->forward(input).square().mean()).backward();
      scaler.step(optimizer);
      c10::Event stepped(device.type());
      stepped.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      require(!stepped.query(), "the host is ahead after step()");
      scaler.update();
      require(!stepped.query(), "the host is ahead after update()");
    }
  });
}

/// A program that looks is answered, and what it saves is what was made.
TEST_F(ScalersOnDevices, AnswerWhenTheyAreAsked) {
  on_devices(1, [](const World& world, const at::Device& device) {
    delay(3);
    const Tensor weight = torch::ones({4}, at::TensorOptions(device)).set_requires_grad(true);
    optim::AdamW optimizer({weight}, optim::AdamWOptions(0.5));
    GradScaler scaler(world, GradScalerOptions().init_scale(16));
    const auto step = [&](float gradient) {
      weight.mutable_grad() = torch::full({4}, gradient, device);
      return scaler.step(optimizer);
    };
    const auto good = step(16);
    scaler.update();
    const auto bad = step(kInfinity);
    require(scaler.found_infinity(), "found");
    scaler.update();
    require(good && !bad, "one of two updates was made");
    require_equal(scaler.current_scale(), 8, "the scale");
    step(8);
    scaler.update();
    step(-kInfinity);
    scaler.update();
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    require_equal(count_of(optimizer, weight), std::int64_t{2}, "steps that are saved");
    step(2);
    scaler.update();
    optimizer.step();  // without a scaler
    require_equal(count_of(optimizer, weight), std::int64_t{4}, "steps");
    scaler.set_state({2, 0});
    require_equal(scaler.scale(torch::ones({}, device)).cpu().item<float>(), 2, "a loss with the scale that was set");
  });
}

TEST_F(ScalersOnDevices, NoticeThatScalesDifferOrFall) {
  need_devices(2);
  const auto train_until_it_throws = [](const GradScalerOptions& options, double scale_of_rank_1, float gradient) {
    return message_of<ConfigError>([&] {
      on_devices(2, [&](const World& world, const at::Device& device) {
        const Tensor weight = torch::ones({4}, at::TensorOptions(device)).set_requires_grad(true);
        optim::AdamW optimizer({weight}, optim::AdamWOptions(0.5));
        GradScaler scaler(world, options);
        if (world.rank() == 1) scaler.set_state({scale_of_rank_1, 0});
        for (int step = 0; step < 20; ++step) {
          weight.mutable_grad() = torch::full({4}, gradient, device);
          scaler.step(optimizer);
          scaler.update();
        }
      });
    });
  };
  expect_parts(train_until_it_throws(GradScalerOptions().init_scale(64), 32, 1), {"from 32 to 64"});
  expect_parts(train_until_it_throws(GradScalerOptions().init_scale(1e-37), 1e-37, kInfinity),
               {"the scale has fallen", "skipped updates"});
}

}  // namespace
}  // namespace tessera::testing
