// A model that was cut before it was sharded, as tensor parallelism will do: every tensor is saved whole, under its own
// shape, and goes on under every other way to cut it.
#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/global_slice.h>
#include <tessera/train/training_state.h>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <gtest/gtest.h>

#include "support/require_tensors.h"
#include "support/slice_elements.h"
#include "train/state/memory_step.h"

namespace tessera::testing {
namespace {

constexpr int kNumRanks = 4;

struct Cut {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t dim;
  std::int64_t num_blocks;  ///< each is cut by itself; 0: none, every rank has all of it

  at::Tensor whole(double phase) const {
    return at::sin(at::arange(num_elements_of(shape), at::kDouble) * 0.7 + phase).view(shape);
  }
  Slice of(int part, int num_parts) const {
    const Slice all = Slice::whole(shape);
    std::vector<Range> ranges;
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const std::int64_t size = shape[dim] / num_blocks;
      const Range range = Partition(size, num_parts).of(part);
      ranges.push_back({block * size + range.start, range.size});
    }
    return num_blocks == 0 ? all : all.select(dim, ranges);
  }
};

const std::vector<Cut>& cuts() {
  static const std::vector<Cut> all{{"fused", {12, 6}, 0, 3},
                                    {"fused_columns", {5, 12}, 1, 3},
                                    {"columns", {7, 10}, 1, 1},
                                    {"bias", {9}, 0, 0},
                                    {"small", {2}, 0, 1}};
  return all;
}

struct Layout {
  int num_parts;
  bool use_orig_params;
};

/// This rank's part of the model in shards, with an optimizer that has made a step or not.
class CutRun {
 public:
  CutRun(const World& world, const Layout& layout, double phase)
      : model_(std::make_shared<torch::nn::Module>("cut")),
        sharded_(shard(world, layout, phase)),
        optimizer_(sharded_.parameters(), torch::optim::AdamOptions(0.1)),
        state_(world) {
    state_.model(sharded_).optimizer(optimizer_);
  }

  void step() {
    const at::NoGradGuard no_grad;
    for (TrainedTensor& trained : sharded_.trained()) {
      at::Tensor gradient = at::zeros_like(trained.tensor);
      for (const ParameterPart& part : trained.parts) {
        for (const Cut& cut : cuts()) {
          if (cut.name != part.name) continue;
          gradient.view({-1}).narrow(0, part.held.start, part.held.size).copy_(elements_of(cut.whole(0.3), part.slice));
        }
      }
      trained.tensor.mutable_grad() = gradient;
    }
    optimizer_.step();
  }

  TrainingState& state() { return state_; }

 private:
  ShardedModel shard(const World& world, const Layout& layout, double phase) {
    const int num_parts = layout.num_parts;
    for (const Cut& cut : cuts()) {
      const Slice slice = cut.of(world.rank() % num_parts, num_parts);
      const at::Tensor local = elements_of(cut.whole(phase), slice).view(slice.selected_shape()).clone();
      set_global_slice(model_->register_parameter(cut.name, local), slice);
    }
    const Communicator shards =
        world.comm().split_by([num_parts](int rank) { return rank % num_parts; }, "shards of a part");
    const auto options = FsdpOptions().min_num_params(8).use_orig_params(layout.use_orig_params);
    return fully_shard(model_, shards, options);
  }

  std::shared_ptr<torch::nn::Module> model_;
  ShardedModel sharded_;
  torch::optim::Adam optimizer_;
  TrainingState state_;
};

void require_same(const MemoryStep& one, const MemoryStep& other, const std::string& what) {
  for (const Cut& cut : cuts()) {
    require_equal(one.tensor("model", cut.name), other.tensor("model", cut.name), what + cut.name);
    for (const char* of_adam : {"/exp_avg", "/exp_avg_sq"}) {
      const std::string name = cut.name + of_adam;
      require_equal(one.tensor("optimizer", name), other.tensor("optimizer", name), what + name);
    }
  }
}

/// The whole model in one process, after the step.
void add_one_process(MemoryStep& step) {
  const auto model = std::make_shared<torch::nn::Module>("whole");
  for (const Cut& cut : cuts()) model->register_parameter(cut.name, cut.whole(0.1)).mutable_grad() = cut.whole(0.3);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.1));
  optimizer.step();
  TrainingState state;
  state.model(model).optimizer(optimizer);
  step.add(state.capture());
}

TEST(TwoLevelState, IsThatOfTheWholeModelWhateverCutsIt) {
  const std::vector<Layout> layouts{{1, false}, {1, true}, {2, false}, {2, true}, {4, false}, {4, true}};
  MemoryStep alone(1);
  add_one_process(alone);
  for (const Layout& layout : layouts) {
    MemoryStep saved(1);
    run_threads(kNumRanks, [&](const World& world) {
      CutRun run(world, layout, 0.1);
      run.step();
      saved.add(run.state().capture());
    });
    require_same(saved, alone, "saved: ");
    for (const Layout& other : layouts) {
      MemoryStep again(1);
      const StateSource source = saved.source();
      run_threads(kNumRanks, [&](const World& world) {
        CutRun run(world, other, 5.5);
        run.state().restore(source);
        again.add(run.state().capture());
      });
      require_same(again, alone, "restored: ");
    }
  }
}

}  // namespace
}  // namespace tessera::testing
