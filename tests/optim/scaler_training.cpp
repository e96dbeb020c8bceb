#include "optim/scaler_training.h"

#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "optim/twin_training.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kNumSteps = 200;
constexpr int kBadStep = 20;

void require_same_everywhere(double value, const DeviceMesh& mesh, const std::string& what) {
  const at::Tensor all = mesh.comm().all_gather(at::full({1}, value, at::kDouble));
  for (int rank = 1; rank < mesh.size(); ++rank) require_equal(all[rank].item<double>(), all[0].item<double>(), what);
}

/// Two layers. The ranks of one "tp" coordinate hold the same weights and see other samples.
class Network {
 public:
  explicit Network(const DeviceMesh& mesh)
      : mesh_(mesh),
        tp_(mesh["tp"].coordinate()),
        hidden_((waves({32, 16}, 0.7 + tp_, at::kFloat) * 0.5).set_requires_grad(true)),
        out_((waves({4, 32}, 0.9 + tp_, at::kFloat) * 0.3).set_requires_grad(true)) {}

  std::vector<at::Tensor> parameters() const { return {hidden_, out_}; }

  at::Tensor loss(int step) const {
    const at::Tensor input = waves({24, 16}, 0.013 * (2 * (step % 5) + mesh_["dp"].coordinate() + 1), at::kFloat);
    const at::Tensor target = at::tanh(input.narrow(1, 4 * tp_, 4) - input.narrow(1, 8, 4) * 0.5);
    const Autocast autocast(at::kHalf);
    return at::mse_loss(at::linear(at::tanh(at::linear(input, hidden_)), out_), target);
  }

  void average_gradients() const {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) mesh_["dp"].comm().all_reduce(parameter.grad(), ReduceOp::kAvg);
  }

 private:
  DeviceMesh mesh_;
  int tp_;
  at::Tensor hidden_;
  at::Tensor out_;
};

}  // namespace

void check_that_all_skip(const World& world) {
  const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
  GradScaler scaler(mesh, GradScalerOptions().init_scale(1024));
  const at::Tensor weight = at::full({5}, 1.0 + world.rank()).set_requires_grad(true);
  optim::AdamW optimizer({weight}, optim::AdamWOptions(0.1));
  for (int step = 0; step < 8; ++step) {
    const bool bad = step % 2 == 1;
    const int culprit = step / 2;
    const at::Tensor before = weight.detach().clone();
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    require_equal(weight.grad()[0].item<double>(), scaler.current_scale(), "the gradient is scaled");
    if (bad && world.rank() == culprit) weight.mutable_grad()[3] = kInfinity;
    require_equal(scaler.step(optimizer), !bad, "steps unless one rank has an infinity");
    require_equal(at::equal(weight, before), bad, "a skipped update changes nothing, another one does");
    require(bad || weight.grad()[0].item<double>() == 1, "the gradient is divided");
    scaler.update();
    require_equal(scaler.current_scale(), 1024 / std::exp2((step + 1) / 2), "each infinity halves the scale");
    require_same_everywhere(scaler.current_scale(), mesh, "the scales are the same");
  }
  require_equal(scaler.num_skipped(), 4, "four updates are skipped");
}

void check_that_training_survives(const World& world) {
  const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
  const Network network(mesh);
  optim::AdamW optimizer(network.parameters(), optim::AdamWOptions(1e-2));
  GradScaler scaler(mesh, GradScalerOptions().growth_interval(15));
  double first = 0;
  double last = 0;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = network.loss(step);
    scaler.scale(loss).backward();
    network.average_gradients();
    const bool bad = step % kBadStep == 7;
    if (bad && world.rank() == step / kBadStep % 4) network.parameters()[0].mutable_grad()[1][2] = kInfinity;
    scaler.unscale(optimizer);
    clip_grad_norm(network.parameters(), 1.0);
    require(!(scaler.step(optimizer) && bad), "no step with an infinity");
    scaler.update();
    require_same_everywhere(scaler.current_scale(), mesh, "the scales are the same");
    (step < 5 ? first : last) += step < 5 || step >= kNumSteps - 5 ? loss.item<double>() : 0;
  }
  require(last < 0.1 * first, "the loss falls from " + std::to_string(first) + ", not to " + std::to_string(last));
  require(scaler.num_skipped() >= kNumSteps / kBadStep, "the bad updates are skipped");
  require(scaler.num_skipped() < kNumSteps / 4, "most updates are made");
  const double sum = network.parameters()[0].sum(at::kDouble).item<double>();
  const at::Tensor sums = mesh["dp"].comm().all_gather(at::full({1}, sum, at::kDouble));
  require_equal(sums[0].item<double>(), sums[1].item<double>(), "the weights are the same along dp");
}

}  // namespace tessera::testing
