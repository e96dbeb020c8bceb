#include <tessera/data_parallel/data_parallel.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

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

/// Streams are the caller's, whatever thread a replica is on.
TEST_F(ReplicasOnDevices, TrainOnTheStreamsOfTheProgram) {
  need_devices(3);
  delay(4);
  const c10::impl::VirtualGuardImpl guard(tested::kDevice);
  const c10::StreamGuard first(guard.getNewStream(tested::device(0)));
  const c10::MultiStreamGuard others({guard.getNewStream(tested::device(1)), guard.getNewStream(tested::device(2))});
  expect_parity();
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
