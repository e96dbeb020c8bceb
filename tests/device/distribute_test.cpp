#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/data_parallel/sync_batch_norm.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <tuple>

#include "device/on_devices.h"
#include "device/parity.h"
#include "device/same_values.h"
#include "parity/training.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

// Data parallelism on devices: gradients come on autograd's threads and are averaged on streams.

namespace tessera::testing {
namespace {

using at::Tensor;

class DistributeOnDevices : public DeviceTest {};
class DistributedParityOnDevices : public DeviceTest, public ::testing::WithParamInterface<std::string> {};

/// Each way of data parallelism ends with the weights of one process that trains on the CPU.
TEST_P(DistributedParityOnDevices, TrainsAsOneProcess) {
  const ParityCase parity{.model = GetParam(), .optimizer = "sgd", .dtype = torch::kDouble, .micro_batches = 2};
  auto variants = parity_variants();
  if (parity.model == "conv") std::erase(variants, "reproducible");  // refused: see reproducible_test.cpp
  expect_parity(parity, variants, train_distributed);
}

TEST_F(DistributeOnDevices, TrainsOnAStreamOfTheProgram) {
  expect_parity({.optimizer = "adamw", .micro_batches = 2, .num_steps = 5}, parity_variants(), train_distributed,
                ProgramStream::kItsOwn);
}

INSTANTIATE_TEST_SUITE_P(Models, DistributedParityOnDevices, ::testing::Values("gpt", "conv", "lstm", "function"));

/// Weights wide enough for each hook to compress them.
torch::nn::Sequential wide_model() {
  torch::nn::Sequential model(torch::nn::Linear(24, 40), torch::nn::Tanh(), torch::nn::Linear(40, 24));
  fill_by_formula(*model);
  return model;
}

/// The weights after some steps with this hook.
State train_with_hook(const std::shared_ptr<GradientHook>& hook, const Communicator& comm, const at::Device& device) {
  auto model = wide_model();
  model->to(device);
  const auto ddp = distribute(model, comm, DdpOptions().hook(hook));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const Tensor input = formula({8, 24}, 2.0 * step + comm.rank(), torch::kFloat).to(device);
    model->forward(input).square().mean().backward();
    optimizer.step();
  }
  return state_of(*model);
}

TEST_F(DistributeOnDevices, CompressesAsOnTheCpu) {
  for (const std::string name : {"none", "fp16", "bf16", "int8", "powersgd"}) {
    const auto make_hook = [&] {
      return name == "powersgd" ? power_sgd_hook(PowerSgdOptions().start_step(1).rank(2)) : make_gradient_hook(name);
    };
    State expected;
    run_threads(2, [&](const World& world) {
      State found = train_with_hook(make_hook(), world.comm(), at::kCPU);
      if (world.rank() == 0) expected = std::move(found);
    });
    delay(3);
    on_devices(2, [&](const World& world, const at::Device& device) {
      const ParityCase close{.dtype = torch::kFloat,
                             .least_tolerance = at_least_of_kernels(0, name == "none" ? 1e-5 : kOtherKernelsCoarse)};
      require_equal(train_with_hook(make_hook(), world.comm(), device), expected, close, name);
    });
  }
}

/// Ranks without a batch answer the calls of the others.
TEST_F(DistributeOnDevices, JoinsRanksWithFewerBatches) {
  for (const std::string name : {"none", "int8", "powersgd"}) {
    const auto train = [&](const World& world, const at::Device& device) {
      auto model = wide_model();
      model->to(device);
      const auto hook =
          name == "powersgd" ? power_sgd_hook(PowerSgdOptions().start_step(1).rank(2)) : make_gradient_hook(name);
      const auto ddp = distribute(model, world, DdpOptions().hook(hook).find_unused_parameters(true));
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto join = ddp.join();
      for (int step = 0; step < 2 + 2 * world.rank(); ++step) {
        optimizer.zero_grad();
        const Tensor input = formula({8, 24}, 2.0 * step + world.rank(), torch::kFloat).to(device);
        model->forward(input).square().mean().backward();
        optimizer.step();
      }
      join.finish();
      return state_of(*model);
    };
    State expected;
    run_threads(2, [&](const World& world) {
      State found = train(world, at::kCPU);
      if (world.rank() == 0) expected = std::move(found);
    });
    delay(6);
    on_devices(2, [&](const World& world, const at::Device& device) {
      const ParityCase close{.dtype = torch::kFloat,
                             .least_tolerance = at_least_of_kernels(0, name == "none" ? 1e-5 : kOtherKernelsCoarse)};
      require_equal(train(world, device), expected, close, name);
    });
  }
}

/// Values that are not finite must not stay in what PowerSGD keeps, and nobody may wait to find them.
TEST_F(DistributeOnDevices, RestartsPowerSgdAfterInfinities) {
  on_devices(2, [&](const World& world, const at::Device& device) {
    auto model = wide_model();
    model->to(device);
    const auto ddp =
        distribute(model, world, DdpOptions().hook(power_sgd_hook(PowerSgdOptions().start_step(0).rank(2))));
    const Tensor input = formula({8, 24}, world.rank(), torch::kFloat).to(device);
    (model->forward(input).sum() * std::numeric_limits<float>::infinity()).backward();
    require(!model->parameters()[0].grad().isfinite().all().item<bool>(), "infinities arrive");
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model->forward(input).square().mean().backward();
      require(model->parameters()[0].grad().isfinite().all().item<bool>(), "and are gone in the next step");
    }
  });
}

struct Normed : torch::nn::Module {
  explicit Normed(const Communicator& comm)
      : first(register_module("first", torch::nn::Linear(6, 4))),
        norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(4), comm))),
        last(register_module("last", torch::nn::Linear(4, 2))) {}
  Tensor forward(const Tensor& input) { return last(norm(first(input))); }

  torch::nn::Linear first;
  SyncBatchNorm norm;
  torch::nn::Linear last;
};

TEST_F(DistributeOnDevices, NormalisesOverAllBatches) {
  const auto train = [](const World& world, const at::Device& device) {
    const auto model = std::make_shared<Normed>(world.comm());
    fill_by_formula(*model);
    model->to(device);
    const auto ddp = distribute(model, world);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      model->forward(formula({3, 6}, step + 0.3 * world.rank(), torch::kFloat).to(device)).square().sum().backward();
      optimizer.step();
    }
    return state_of(*model);
  };
  State expected;
  run_threads(2, [&](const World& world) {
    State found = train(world, at::kCPU);
    if (world.rank() == 0) expected = std::move(found);
  });
  delay(4);
  on_devices(2, [&](const World& world, const at::Device& device) {
    require_equal(train(world, device), expected, ParityCase{.dtype = torch::kFloat}, "SyncBatchNorm");
  });
}

/// The host launches a step and goes on: a wait for the device in every step is what makes GPUs idle.
TEST_F(DistributeOnDevices, NeverWaitsForTheDeviceInAStep) {
  for (const std::string name : {"none", "fp16", "int8", "powersgd", "SyncBatchNorm"}) {
    on_devices(2, [&](const World& world, const at::Device& device) {
      const bool normed = name == "SyncBatchNorm";
      const auto hook = normed               ? all_reduce_hook()
                        : name == "powersgd" ? power_sgd_hook(PowerSgdOptions().start_step(0).rank(2))
                                             : make_gradient_hook(name);
      auto wide = wide_model();
      const auto narrow = std::make_shared<Normed>(world.comm());
      const std::shared_ptr<torch::nn::Module> model = normed ? std::shared_ptr<torch::nn::Module>(narrow) : wide.ptr();
      model->to(device);
      const auto ddp = distribute(model, world, DdpOptions().hook(hook));
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
      const Tensor input = formula({8, normed ? 6 : 24}, world.rank(), torch::kFloat).to(device);
      const auto step = [&] {
        optimizer.zero_grad();
        (normed ? narrow->forward(input) : wide->forward(input)).square().mean().backward();
        optimizer.step();
      };
      // Buckets are arranged and memory is taken.
      for (int i = 0; i < 3; ++i) step();
      world.comm().barrier();
      tested::require_no_host_waits(name, [&] {
        for (int i = 0; i < 3; ++i) step();
      });
      world.comm().barrier();
    });
  }
}

TEST_F(DistributeOnDevices, RefusesAModelOnTwoDevices) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    auto model = wide_model();
    model[0]->as<torch::nn::Linear>()->to(device);
    const auto call = [&] { std::ignore = distribute(model, world); };
    expect_parts(message_of<ConfigError>(call), {"2.weight is on cpu, 0.weight on " + device.str(), "on one device"});
  });
}

/// Autograd computes on threads of its own: whose backward it is, tells the thread that called it.
TEST_F(DistributeOnDevices, RefusesABackwardOfAnotherThread) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    auto model = wide_model();
    model->to(device);
    const auto ddp = distribute(model, world);
    const Tensor loss = model->forward(torch::ones({2, 24}, device)).sum();
    std::string said;
    std::thread([&] { said = message_of<ConfigError>([&] { loss.backward(); }); }).join();
    expect_parts(said, {"a backward pass of a distributed model runs on another thread than distribute()"});
    model->zero_grad();
    model->forward(torch::ones({2, 24}, device)).sum().backward();
    require(model->parameters()[0].grad().defined(), "its own thread goes on");
  });
}

}  // namespace
}  // namespace tessera::testing
