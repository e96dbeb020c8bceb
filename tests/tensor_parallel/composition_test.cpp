// Models that are cut along one axis, and copied or sharded along another, train as in one process.
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "parity/models.h"
#include "support/require.h"
#include "tensor_parallel/plans.h"
#include "tensor_parallel/training.h"

namespace tessera::testing {
namespace {

struct Steps {
  std::vector<double> norms;
  Values values;
};

/// What happens to the model on a mesh {dp, tp}; then it is trained.
using Share = std::function<ParallelModel(const std::shared_ptr<ParityModel>&, const DeviceMesh&)>;

constexpr int kNumSteps = 5;
constexpr double kMaxNorm = 0.05;

/// `parts`: the parts of the batch that this process computes, of `num_parts`.
Steps train(ParityModel& model, const ParallelModel& parallel, const std::vector<int>& parts, int num_parts,
            bool accumulates) {
  Steps steps;
  optim::AdamW optimizer(parallel.parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-6));
  GradScaler scaler(parallel, GradScalerOptions().init_scale(1024));
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::optional<NoSync> only_adds;
      if (accumulates && i + 1 < parts.size()) only_adds.emplace(parallel);
      const at::Tensor loss = model.loss(model.forward(model.input(step, parts[i])), step, parts[i]);
      scaler.scale(loss / static_cast<double>(num_parts)).backward();
    }
    scaler.unscale(optimizer);
    steps.norms.push_back(clip_grad_norm(parallel, kMaxNorm));
    scaler.step(optimizer);
    scaler.update();
  }
  return steps;
}

Steps train_in_one_process(const std::string& name, int num_parts) {
  const auto model = make_parity_model(name, torch::kDouble);
  std::vector<int> parts(static_cast<std::size_t>(num_parts));
  std::iota(parts.begin(), parts.end(), 0);
  Steps steps = train(*model, ParallelModel(std::shared_ptr<torch::nn::Module>(model)), parts, num_parts, false);
  for (const auto& item : model->named_parameters()) steps.values[item.key()] = item.value().detach();
  return steps;
}

void expect_same(const std::string& name, int dp, int tp, const Share& share) {
  constexpr int kPartsPerRank = 2;
  const Steps expected = train_in_one_process(name, dp * kPartsPerRank);
  run_threads(dp * tp, [&](const World& world) {
    const DeviceMesh mesh = DeviceMesh::two_d(world, dp, tp);
    const auto model = make_parity_model(name, torch::kDouble);
    const ParallelModel parallel = share(model, mesh);
    const int first = mesh["dp"].coordinate() * kPartsPerRank;
    // Copies average over the ranks of dp, so each divides by its own number of parts.
    const Steps found = train(*model, parallel, {first, first + 1}, kPartsPerRank, true);
    const std::string what = name + " on " + std::to_string(dp) + " x " + std::to_string(tp);
    for (int step = 0; step < kNumSteps; ++step) {
      const auto place = static_cast<std::size_t>(step);
      require(std::abs(found.norms[place] - expected.norms[place]) <= 1e-11 * expected.norms[place],
              what + ": the norm of step " + std::to_string(step) + " is " + std::to_string(found.norms[place]) +
                  ", expected " + std::to_string(expected.norms[place]));
    }
    Values values;
    {
      const auto whole = parallel.gather();
      for (const auto& item : model->named_parameters()) {
        require(item.value().has_storage(), "a rank may go on alone");
        values[item.key()] = item.value().detach().clone();
      }
    }
    const auto [difference, tensor] = largest_difference(values, expected.values);
    require(difference <= 1e-9, what + ": " + tensor + " differs by " + std::to_string(difference * 1e9) + "e-9");
  });
}

TEST(TensorComposition, WithCopies) {
  const auto share = [](const std::string& name) {
    return [name](const std::shared_ptr<ParityModel>& model, const DeviceMesh& mesh) -> ParallelModel {
      static thread_local std::vector<TensorParallelModel> kept;
      kept.assign(1, tensor_parallel(model, mesh["tp"], plan_for(name)));
      return distribute(std::shared_ptr<torch::nn::Module>(model), mesh["dp"],
                        DdpOptions().bucket_bytes(1024).first_bucket_bytes(256));
    };
  };
  for (const std::string name : {"gpt", "recomputed gpt", "gpt2", "transformer"}) {
    expect_same(name, 2, 2, share(name));
    expect_same(name, 1, 3, share(name));
    expect_same(name, 3, 1, share(name));
  }
  expect_same("gpt", 4, 2, share("gpt"));
}

TEST(TensorComposition, WithShards) {
  const auto share = [](const std::string& name, const FsdpOptions& options) {
    return [name, options](const std::shared_ptr<ParityModel>& model, const DeviceMesh& mesh) -> ParallelModel {
      const auto cut = tensor_parallel(model, mesh["tp"], plan_for(name));
      return fully_shard(std::shared_ptr<torch::nn::Module>(model), mesh["dp"], options);
    };
  };
  for (const std::string name : {"gpt", "recomputed gpt", "gpt2", "transformer"}) {
    for (const auto strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1}) {
      const auto options = FsdpOptions().strategy(strategy).min_num_params(9).max_unit_bytes(2000);
      expect_same(name, 2, 2, share(name, options));
    }
    expect_same(name, 1, 3, share(name, FsdpOptions().min_num_params(40)));
    expect_same(name, 3, 1, share(name, FsdpOptions().min_num_params(1).use_orig_params(true)));
  }
  expect_same("gpt", 4, 2, share("gpt", FsdpOptions().min_num_params(9)));
}

}  // namespace
}  // namespace tessera::testing
