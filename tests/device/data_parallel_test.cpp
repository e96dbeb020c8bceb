#include <tessera/data_parallel/data_parallel.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "data_parallel/replica_models.h"
#include "device/on_devices.h"
#include "device/same_values.h"

// Replicas on the devices of one process: weights and gradients are copied between devices, on the caller's streams.

namespace tessera::testing {
namespace {

using at::Tensor;

class ReplicasOnDevices : public DeviceTest {};

template <class Forward>
std::vector<Tensor> train(MlpImpl& model, const at::Device& device, const Forward& forward) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (std::uint64_t step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const Tensor output = forward(random_values({7, 6}, 1000 + step).to(device));
    at::mse_loss(output, random_values(output.sizes(), 2000 + step).to(device)).backward();
    optimizer.step();
  }
  std::vector<Tensor> weights;
  for (const Tensor& one : model.parameters()) weights.push_back(one.detach().cpu());
  return weights;
}

void expect_parity() {
  need_devices(3);
  const auto alone = make_model<MlpImpl>();
  const auto expected = train(*alone, at::kCPU, [&](const Tensor& input) { return alone->forward(input); });
  const auto model = make_model<MlpImpl>();
  model->to(tested::device(0));
  DataParallel<MlpImpl> replicas(
      model, DataParallelOptions().devices({tested::device(0), tested::device(1), tested::device(2)}));
  const auto found = train(*model, tested::device(0), [&](const Tensor& input) { return replicas.forward(input); });
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_LT((found[i] - expected[i]).abs().max().item<double>(), at_least_of_kernels(1e-12)) << "parameter " << i;
  }
}

TEST_F(ReplicasOnDevices, TrainAsOneProcess) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    delay(seed);
    expect_parity();
  }
}

/// A stream of the program's on each of three devices, as long as this lives.
struct OwnStreams {
  c10::impl::VirtualGuardImpl guard{tested::kDevice};
  c10::MultiStreamGuard on{{guard.getNewStream(tested::device(0)), guard.getNewStream(tested::device(1)),
                            guard.getNewStream(tested::device(2))}};
};

/// Streams are the caller's, whatever thread a replica is on.
TEST_F(ReplicasOnDevices, TrainOnTheStreamsOfTheProgram) {
  need_devices(3);
  delay(4);
  const OwnStreams own;
  expect_parity();
}

/// Backward may begin on another thread, whose streams are others.
TEST_F(ReplicasOnDevices, RunBackwardOnTheStreamsOfTheirForward) {
  need_devices(3);
  delay(5);
  const auto model = make_model<MlpImpl>();
  model->to(tested::device(0));
  const DataParallel<MlpImpl> replicas(
      model, DataParallelOptions().devices({tested::device(0), tested::device(1), tested::device(2)}));
  tested::synchronise();
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const Tensor input = random_values({7, 6}, 3).to(tested::device(0));
    const OwnStreams own;
    const Tensor loss = replicas.forward(input).square().sum();
    {
      const OwnStreams others;
      loss.backward();
    }
    tested::synchronise();
    const auto alone = make_model<MlpImpl>();
    alone->forward(random_values({7, 6}, 3)).square().sum().backward();
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      const Tensor difference = model->parameters()[i].grad().cpu() - alone->parameters()[i].grad();
      EXPECT_LT(difference.abs().max().item<double>(), at_least_of_kernels(1e-10)) << "parameter " << i;
    }
  }
}

/// Each adds a number that it makes on the current device.
struct ShiftedImpl : torch::nn::Cloneable<ShiftedImpl> {
  ShiftedImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(6, 3)); }
  Tensor forward(const Tensor& x) { return linear(x) + torch::ones({1}, at::Device(tested::kDevice)); }
  torch::nn::Linear linear{nullptr};
};

TEST_F(ReplicasOnDevices, HaveTheirDeviceAsTheCurrentOne) {
  need_devices(3);
  const auto model = std::make_shared<ShiftedImpl>();
  model->to(tested::device(0));
  const DataParallel<ShiftedImpl> replicas(
      model, DataParallelOptions().devices({tested::device(0), tested::device(1), tested::device(2)}));
  const Tensor output = replicas.forward(torch::zeros({3, 6}, tested::device(0)));
  output.sum().backward();
  for (int row = 0; row < 3; ++row) EXPECT_TRUE(at::equal(output[row].cpu(), (model->linear->bias + 1).cpu()));
  std::vector<at::Device> current(3, at::kCPU);
  replicas.train_replicas([&](ShiftedImpl& /*replica*/, const World& world) {
    current[static_cast<std::size_t>(world.rank())] = torch::ones({1}, at::Device(tested::kDevice)).device();
  });
  EXPECT_EQ(current, replicas.devices());
}

/// Ranks are threads of ours, whose streams the program does not know.
TEST_F(ReplicasOnDevices, TrainApartOnTheStreamsOfTheProgram) {
  need_devices(3);
  delay(6);
  const OwnStreams own;
  const auto model = make_model<MlpImpl>();
  model->to(tested::device(0));
  const DataParallel<MlpImpl> replicas(
      model, DataParallelOptions().devices({tested::device(0), tested::device(1), tested::device(2)}));
  replicas.train_replicas([](MlpImpl& replica, const World& world) {
    const at::NoGradGuard no_grad;
    for (const Tensor& parameter : replica.parameters()) parameter.add_(world.rank());
  });
  const auto before = make_model<MlpImpl>();
  for (std::size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(model->parameters()[i].cpu(), before->parameters()[i] + 1));
  }
}

TEST_F(ReplicasOnDevices, AreOneOnEachDeviceOfTheMachine) {
  const auto model = make_model<MlpImpl>();
  model->to(tested::device(0));
  const DataParallel<MlpImpl> replicas(model);
  std::vector<at::Device> all;
  for (int i = 0; i < tested::num_devices(); ++i) all.push_back(tested::device(i));
  EXPECT_EQ(replicas.devices(), all);
}

}  // namespace
}  // namespace tessera::testing
