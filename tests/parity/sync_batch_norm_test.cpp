#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/sync_batch_norm.h>

#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include "parity/models.h"
#include "parity/training.h"

namespace tessera::testing {
namespace {

/// A convolutional network over a batch norm of any kind.
template <class Norm>
struct Net : torch::nn::Module {
  explicit Net(const Norm& made) : norm(register_module("norm", made)) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
    head = register_module("head", torch::nn::Linear(4, 3));
    to(torch::kDouble);
    fill_by_formula(*this);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return head(torch::tanh(norm->forward(first(input))).mean({2, 3}));
  }

  Norm norm;
  torch::nn::Conv2d first{nullptr};
  torch::nn::Linear head{nullptr};
};

constexpr int kPart = 4;

torch::Tensor whole_input(int step, int num_ranks) {
  return formula({std::int64_t{kPart} * num_ranks, 2, 6, 6}, step, torch::kDouble);
}

template <class Model>
void train(Model& model, const std::function<torch::Tensor(int step)>& input) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    model.forward(input(step)).square().mean().backward();
    optimizer.step();
  }
}

TEST(SyncBatchNormParity, TrainsAsTheWholeBatchDoes) {
  for (const int num_ranks : {2, 4}) {
    const ParityCase parity{.model = "conv with SyncBatchNorm", .num_ranks = num_ranks};
    Net alone(torch::nn::BatchNorm2d(4));
    train(alone, [&](int step) { return whole_input(step, num_ranks); });
    run_threads(num_ranks, [&](const World& world) {
      const auto model = std::make_shared<Net<SyncBatchNorm>>(SyncBatchNorm(torch::nn::BatchNormOptions(4), world));
      const auto ddp = distribute(model, world);
      train(*model, [&](int step) { return whole_input(step, num_ranks).narrow(0, kPart * world.rank(), kPart); });
      require_equal(state_of(*model), state_of(alone), parity, "SyncBatchNorm");
    });
  }
}

}  // namespace
}  // namespace tessera::testing
