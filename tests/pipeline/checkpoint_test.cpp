// What one number of stages saves, every other loads, and training goes on as in one process.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/world.h>
#include <tessera/optim/adamw.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "parity/models.h"
#include "pipeline/training.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr int kSaveAt = 2;
constexpr int kUntil = 4;

struct Layout {
  int num_ranks;
  std::string schedule;
  std::string text() const { return std::to_string(num_ranks) + " ranks, " + schedule; }
};

class Trainee {
 public:
  Trainee(const World& world, const Layout& layout, const std::string& model)
      : model_(make_parity_model(model, torch::kDouble)),
        pipe_(pipeline(model_, world, PipelineOptions().schedule(layout.schedule))),
        optimizer_(pipe_.parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-6)),
        state_(world) {
    state_.model(pipe_).optimizer(optimizer_).value("step", step_);
  }

  void train(std::int64_t until) {
    for (; step_ < until; ++step_) {
      optimizer_.zero_grad();
      const auto step = static_cast<int>(step_);
      PipelineBatch batch;
      batch.num_micro_batches = 2;
      batch.loss = [&](int i) { return model_->loss(model_->forward(model_->input(step, i)), step, i); };
      batch.tensors = [&](int i) { return std::vector{model_->input(step, i)}; };
      batch.weights = {1, 1};
      pipe_.run(batch, true);
      optimizer_.step();
    }
  }
  TrainingState& state() { return state_; }
  Values values() const {
    const auto whole = pipe_.gather();
    Values values;
    for (const auto& item : model_->named_parameters()) values[item.key()] = item.value().detach().clone();
    for (const auto& item : model_->named_buffers()) values[item.key()] = item.value().clone();
    return values;
  }

 private:
  std::shared_ptr<ParityModel> model_;
  Pipeline pipe_;
  optim::AdamW optimizer_;
  TrainingState state_;
  std::int64_t step_ = 0;
};

void expect_every_way(const std::string& model) {
  const std::vector<Layout> layouts{{1, "1f1b"}, {2, "1f1b"}, {2, "zb-v"}, {3, "gpipe"}};
  Values expected;
  run_threads(1, [&](const World& world) {
    Trainee trainee(world, layouts.front(), model);
    trainee.train(kUntil);
    expected = trainee.values();
  });
  for (const Layout& saving : layouts) {
    const TemporaryFolder folder;
    run_threads(saving.num_ranks, [&](const World& world) {
      Trainee trainee(world, saving, model);
      trainee.train(kSaveAt);
      CheckpointFolder checkpoints(folder.path(), world);
      require(checkpoints.save(kSaveAt, trainee.state().capture()).error.empty(), "it is saved");
    });
    for (const Layout& loading : layouts) {
      const TemporaryFolder later;
      run_threads(loading.num_ranks, [&](const World& world) {
        const std::string what = "from " + saving.text() + " to " + loading.text();
        Trainee trainee(world, loading, model);
        CheckpointFolder checkpoints(folder.path(), world);
        const auto step = checkpoints.load_newest([&](const SavedStep& saved) { trainee.state().restore(saved); });
        require(step == kSaveAt, what + ": there is a step");
        trainee.train(kUntil);
        // What was loaded for parameters of other ranks has not been trained here.
        CheckpointFolder again(later.path(), world);
        require(again.save(kUntil, trainee.state().capture()).error.empty(), what + ": it is saved again");
        const auto [difference, name] = largest_difference({.model = model}, trainee.values(), expected);
        require(difference <= 1e-10, what + ": " + name + " differs by " + std::to_string(difference * 1e9) + "e-9");
      });
    }
  }
}

TEST(PipelineCheckpoints, LeadFromEveryNumberOfStagesToEveryOther) { expect_every_way("gpt"); }
TEST(PipelineCheckpoints, HaveTheBuffersOfEachStage) { expect_every_way("conv"); }

}  // namespace
}  // namespace tessera::testing
