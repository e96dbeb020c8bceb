// Tensors that two parallelisms have cut, one after the other: as boxes, then as extents of what is left.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/held_slice.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "support/error_message.h"
#include "support/require_tensors.h"
#include "support/slice_elements.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::require;

using testing::require_equal;

constexpr int kNumRanks = 8;
constexpr int kNumRandom = 200;

/// How 8 ranks share a model: `tensor` parts of each tensor, each of them in `shards`, the rest are replicas.
struct Factors {
  int shards;
  int tensor;

  std::string text() const { return std::to_string(shards) + " shards x " + std::to_string(tensor) + " parts"; }
};

std::vector<Factors> factorisations() {
  std::vector<Factors> all;
  for (const int shards : {1, 2, 4, 8}) {
    for (int tensor = 1; shards * tensor <= kNumRanks; tensor *= 2) all.push_back({shards, tensor});
  }
  return all;
}

struct CutTensor {
  std::vector<std::int64_t> shape;
  std::size_t dim = 0;               ///< that tensor parallelism cuts
  std::vector<std::int64_t> blocks;  ///< each of which it cuts by itself: three of a fused projection
  std::int64_t granule = 1;          ///< of the shards

  at::Tensor values(std::size_t number) const {
    return at::arange(num_elements_of(shape), at::kLong).mul_(7).add_(static_cast<std::int64_t>(number)).view(shape);
  }

  /// What a rank holds.
  Slice of(int rank, const Factors& factors) const {
    const int part = rank % factors.tensor;
    std::vector<Range> ranges;
    std::int64_t begin = 0;
    for (const std::int64_t size : blocks) {
      const Range range = Partition(size, factors.tensor).of(part);
      ranges.push_back({begin + range.start, range.size});
      begin += size;
    }
    const Slice box = Slice::whole(shape).select(dim, ranges);
    return box.part(Partition(box.num_elements(), factors.shards, granule).of(rank / factors.tensor % factors.shards));
  }
};

CutTensor random_tensor(std::mt19937& random) {
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  CutTensor tensor;
  for (std::int64_t d = below(3); d >= 0; --d) tensor.shape.push_back(1 + below(14));
  tensor.dim = static_cast<std::size_t>(below(static_cast<std::int64_t>(tensor.shape.size())));
  std::int64_t left = tensor.shape[tensor.dim];
  for (std::int64_t block = below(3); block > 0; --block) {
    tensor.blocks.push_back(below(left + 1));
    left -= tensor.blocks.back();
  }
  tensor.blocks.push_back(left);
  tensor.granule = std::vector<std::int64_t>{1, 4, 16}[static_cast<std::size_t>(below(3))];
  return tensor;
}

std::vector<CutTensor> tensors_to_cut() {
  std::vector<CutTensor> tensors{
      {{24, 10}, 0, {24}, 1},         // rows
      {{10, 24}, 1, {24}, 1},         // columns
      {{24, 10}, 0, {8, 8, 8}, 1},    // a fused projection, as torch::nn::Linear has it
      {{10, 24}, 1, {8, 8, 8}, 4},    // and as GPT-2 has it
      {{24, 10}, 0, {16, 4, 4}, 16},  // with grouped heads
      {{11, 7}, 1, {7}, 1},           // uneven
      {{3, 5}, 0, {3}, 16},           // parts and shards of which most are empty
      {{1}, 0, {1}, 1},
      {{4, 0, 3}, 0, {4}, 1},  // nothing at all
      {{5, 6, 7}, 1, {2, 4}, 4},
  };
  std::mt19937 random(17);
  for (int i = 0; i < kNumRandom; ++i) tensors.push_back(random_tensor(random));
  return tensors;
}

RankState state_of(const std::vector<CutTensor>& tensors, int rank, const Factors& factors) {
  RankState state;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Slice slice = tensors[i].of(rank, factors);
    state.slices.push_back({{"t" + std::to_string(i), slice, testing::elements_of(tensors[i].values(i), slice)},
                            i % 2 ? "model" : "optimizer"});
  }
  return state;
}

TEST(TwoLevels, AreSavedByEachFactorisationAndLoadedByEachOther) {
  const std::vector<CutTensor> tensors = tensors_to_cut();
  const std::vector<Factors> all = factorisations();
  ASSERT_EQ(all.size(), 10U);
  const testing::TemporaryFolder folder;
  run_threads(kNumRanks, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const SaveReport saved = checkpoints.save(static_cast<std::int64_t>(i), state_of(tensors, world.rank(), all[i]));
      require(saved.error.empty(), all[i].text() + ": " + saved.error);
    }
    require(checkpoints.wait().error.empty(), "all are saved");
    for (std::size_t i = 0; i < all.size(); ++i) {
      const SavedStep step(folder.path() / step_folder_name(static_cast<std::int64_t>(i)));
      require(world.rank() > 0 || step.verify().empty(), "intact");
      for (const Factors& factors : all) {
        const RankState expected = state_of(tensors, world.rank(), factors);
        std::vector<HeldSlice> found = expected.slices;
        for (HeldSlice& slice : found) slice.values = at::full_like(slice.values, -1);
        read_slices(step, found);
        for (std::size_t t = 0; t < found.size(); ++t) {
          require_equal(found[t].values, expected.slices[t].values,
                        found[t].name + ", " + found[t].slice.text() + ", saved on " + all[i].text() +
                            " and loaded on " + factors.text());
        }
      }
    }
  });
}

// A rank that took its part of a tensor for the tensor, as sharding did that knew nothing of tensor parallelism.
TEST(TwoLevels, AreNotSavedAsReplicasOfOneAnother) {
  const testing::TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    const Slice half = Slice::whole({4, 6}).narrow(1, {3 * world.rank(), 3});
    RankState state;
    state.slices = {{{"w", half, at::full({4, 3}, world.rank(), at::kFloat)}, "model"}};
    require(checkpoints.save(1, state).error.empty(), "as parts they are saved");
    checkpoints.wait();
    const SavedStep step(folder.path() / step_folder_name(1));
    require_equal(step.manifest().find("model", "w")->shape, std::vector<std::int64_t>{4, 6}, "the whole tensor");
    state.slices[0].slice = half.narrow(0, {0, 3});
    state.slices[0].values = at::zeros({3, 3});
    testing::expect_parts(testing::message_of<ConfigError>([&] { checkpoints.save(2, state); }),
                          {"\"w\"", "no rank holds element 18 of 24"});
  });
}

}  // namespace
}  // namespace tessera
