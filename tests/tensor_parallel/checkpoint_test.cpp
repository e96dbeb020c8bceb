// What one layout of eight ranks saves, every other loads, and training goes on as in one process.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "parity/models.h"
#include "support/require.h"
#include "support/temporary_folder.h"
#include "tensor_parallel/plans.h"
#include "tensor_parallel/training.h"

namespace tessera::testing {
namespace {

constexpr int kNumParts = 8;  // of a step, over all ranks
constexpr int kSaveAt = 2;
constexpr int kUntil = 4;

struct Layout {
  int dp;
  int tp;
  bool shards = true;  ///< along dp; else copies
  std::string text() const {
    return std::to_string(dp) + " x " + std::to_string(tp) + (shards ? " in shards" : " copied");
  }
};

class Trainee {
 public:
  Trainee(const World& world, const Layout& layout)
      : mesh_(DeviceMesh::two_d(world, layout.dp, layout.tp)), model_(make_parity_model("gpt", torch::kDouble)) {
    const std::shared_ptr<torch::nn::Module> module = model_;
    cut_.emplace(tensor_parallel(module, mesh_["tp"], plan_for("gpt")));
    parallel_.emplace(layout.shards ? ParallelModel(fully_shard(module, mesh_["dp"], FsdpOptions().min_num_params(9)))
                                    : ParallelModel(distribute(module, mesh_["dp"])));
    optimizer_ = std::make_unique<optim::AdamW>(parallel_->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-6));
    state_ = std::make_unique<TrainingState>(world);
    state_->model(*parallel_).optimizer(*optimizer_).value("step", step_);
  }

  void train(std::int64_t until) {
    const int num_own = kNumParts / mesh_["dp"].size();
    for (; step_ < until; ++step_) {
      optimizer_->zero_grad();
      for (int i = 0; i < num_own; ++i) {
        std::optional<NoSync> only_adds;
        if (i + 1 < num_own) only_adds.emplace(*parallel_);
        const int part = mesh_["dp"].coordinate() * num_own + i;
        const auto step = static_cast<int>(step_);
        (model_->loss(model_->forward(model_->input(step, part)), step, part) / num_own).backward();
      }
      optimizer_->step();
    }
  }
  TrainingState& state() { return *state_; }
  Values values() const {
    const auto whole = parallel_->gather();
    Values values;
    for (const auto& item : model_->named_parameters()) {
      values[item.key()] = at::empty(item.value().sizes(), at::kDouble).copy_(item.value().detach());
    }
    return values;
  }

 private:
  DeviceMesh mesh_;
  std::shared_ptr<ParityModel> model_;
  std::optional<TensorParallelModel> cut_;
  std::optional<ParallelModel> parallel_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<TrainingState> state_;
  std::int64_t step_ = 0;
};

TEST(TensorCheckpoints, LeadFromEveryLayoutToEveryOther) {
  const std::vector<Layout> layouts{{1, 1}, {8, 1}, {4, 2}, {2, 4}, {1, 8}, {2, 4, false}, {4, 2, false}};
  Values expected;
  run_threads(1, [&](const World& world) {
    Trainee trainee(world, {1, 1, false});
    trainee.train(kUntil);
    expected = trainee.values();
  });
  for (const Layout& saving : layouts) {
    const TemporaryFolder folder;
    run_threads(saving.dp * saving.tp, [&](const World& world) {
      Trainee trainee(world, saving);
      trainee.train(kSaveAt);
      CheckpointFolder checkpoints(folder.path(), world);
      require(checkpoints.save(kSaveAt, trainee.state().capture()).error.empty(), "it is saved");
    });
    for (const Layout& loading : layouts) {
      run_threads(loading.dp * loading.tp, [&](const World& world) {
        const std::string what = "from " + saving.text() + " to " + loading.text();
        Trainee trainee(world, loading);
        CheckpointFolder checkpoints(folder.path(), world);
        const auto step = checkpoints.load_newest([&](const SavedStep& saved) { trainee.state().restore(saved); });
        require(step == kSaveAt, what + ": there is a step");
        trainee.train(kUntil);
        const auto [difference, name] = largest_difference(trainee.values(), expected);
        require(difference <= 1e-9, what + ": " + name + " differs by " + std::to_string(difference * 1e9) + "e-9");
      });
    }
  }
}

}  // namespace
}  // namespace tessera::testing
