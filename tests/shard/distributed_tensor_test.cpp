#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/shard/distributed_tensor.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "support/error_message.h"
#include "support/require_tensors.h"

namespace tessera {
namespace {

using testing::require;
using testing::require_equal;
using Placements = std::vector<Placement>;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  std::vector<AxisSpec> axes(int num_ranks) {
    std::vector<AxisSpec> axes;
    const int first = num_ranks % 2 == 0 && below(2) == 0 ? 2 : num_ranks;
    axes.push_back({"a", first});
    if (first < num_ranks || below(3) == 0) axes.push_back({"b", num_ranks / first});
    if (num_ranks == 8 && first == 2 && below(2) == 0) axes = {{"a", 2}, {"b", 2}, {"c", 2}};
    return axes;
  }
  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> shape;
    for (int i = 1 + below(3); i > 0; --i) shape.push_back(below(4) == 0 ? below(8) : 12);
    return shape;
  }
  /// Some that fit.
  Placements placements(const std::vector<std::int64_t>& shape, const std::vector<AxisSpec>& axes) {
    for (;;) {
      Placements result;
      std::vector<int> sizes;
      for (const AxisSpec& axis : axes) {
        sizes.push_back(axis.size);
        const int kind = below(4);
        if (kind == 0) {
          result.push_back(Placement::replicate());
        } else if (kind == 1) {
          result.push_back(Placement::partial());
        } else {
          result.push_back(Placement::shard(below(static_cast<int>(shape.size())), 1 + below(3), 1 + below(3)));
        }
      }
      bool fits = true;
      int num_ranks = 1;
      for (const int size : sizes) num_ranks *= size;
      for (int rank = 0; rank < num_ranks && fits; ++rank) {
        AxisPosition position{sizes, {}};
        int rest = rank;
        for (const int size : sizes) position.coordinates.push_back(rest % size), rest /= size;
        try {
          slice_at(shape, result, position);
        } catch (const ConfigError&) {
          fits = false;
        }
      }
      if (fits) return result;
    }
  }

 private:
  std::mt19937 random_;
};

/// A tensor of whole numbers, so that sums are exact whatever their order.
at::Tensor numbers(const std::vector<std::int64_t>& shape, std::int64_t start) {
  return at::arange(start, start + num_elements_of(shape), at::kDouble).view(shape);
}

/// One tensor, held in random ways one after the other, against the whole one. With gradients of gradients.
void check_case(const World& world, unsigned seed) {
  Draw draw(seed);
  const auto axes = draw.axes(world.size());
  const auto shape = draw.shape();
  const DeviceMesh mesh(world, axes);
  const std::string what = "case " + std::to_string(seed) + " ";
  const at::Tensor whole = numbers(shape, 1).requires_grad_();
  const at::Tensor weight = numbers(shape, 5);

  Placements placements = draw.placements(shape, axes);
  auto held = DistributedTensor::of(whole, mesh, placements);
  for (int i = 0; i < 3; ++i) {
    const Placements next = draw.placements(shape, axes);
    const auto moved = held.redistribute(next);
    require_equal(at::IntArrayRef(moved.local().sizes()).vec(), moved.slice().selected_shape(),
                  what + placements_text(placements) + " to " + placements_text(next) + ": the local shape");
    require_equal(moved.gather(), whole, what + placements_text(placements) + " to " + placements_text(next));
    held = moved;
    placements = next;
  }
  // One loss for all ranks: of the gathered tensor.
  const at::Tensor loss = (held.gather().square() * weight).sum();
  const auto first = torch::autograd::grad({loss}, {whole}, {}, true, true)[0];
  require_equal(first, 2 * whole * weight, what + "gradient");
  if (first.numel() == 0) return;
  const auto second = torch::autograd::grad({first.sum()}, {whole})[0];
  require_equal(second, 2 * weight, what + "gradient of the gradient");
}

TEST(DistributedTensor, IsTheSameTensorInAThousandRandomPlaces) {
  unsigned seed = 0;
  for (const auto& [num_ranks, count] :
       std::vector<std::pair<int, unsigned>>{{1, 60}, {2, 240}, {3, 240}, {4, 260}, {6, 100}, {8, 100}}) {
    run_threads(num_ranks, [&, first = seed, cases = count](const World& world) {
      for (unsigned i = 0; i < cases; ++i) check_case(world, first + i);
    });
    seed += count;
  }
  EXPECT_EQ(seed, 1000);
}

TEST(DistributedTensor, SaysWhatItHoldsAndWhetherItNeedsCommunication) {
  run_threads(4, [](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    const auto columns = DistributedTensor::of(numbers({3, 5}, 0), mesh, {Placement::replicate(), Placement::shard(1)});
    const int place = mesh["tp"].coordinate();
    require(columns.partition("tp") == TensorPartition{1, place == 0 ? 0 : 3, place == 0 ? 3 : 5, 2, place},
            "the partition");
    require(columns.slice() == Slice::whole({3, 5}).narrow(1, place == 0 ? Range{0, 3} : Range{3, 2}), "the slice");
    require(columns.needs_communication({Placement::replicate(), Placement::replicate()}), "a gather communicates");
    require(!columns.needs_communication({Placement::shard(0), Placement::shard(1)}), "a cut does not");
    testing::expect_parts(testing::message_of<ConfigError>([&] { (void)columns.partition("dp"); }),
                          {"[replicate, shard(1)]", "no single partition along 'dp'", "slice()"});
  });
}

TEST(DistributedTensor, IsRefusedWithALocalTensorOfAnotherShape) {
  run_threads(2, [](const World& world) {
    const DeviceMesh mesh = DeviceMesh::linear(world, "tp");
    testing::expect_parts(testing::message_of<ConfigError>([&] {
                            DistributedTensor::from_local(at::zeros({3, 2}), mesh, {Placement::shard(0)}, {4, 2});
                          }),
                          {"holds [3, 2] of a tensor of [4, 2] that is [shard(0)]", "its part has [2, 2]"});
    const auto rows =
        DistributedTensor::from_local(at::full({2, 2}, world.rank() + 1.0), mesh, {Placement::shard(0)}, {4, 2});
    require_equal(rows.gather(), at::tensor({1., 1., 1., 1., 2., 2., 2., 2.}, at::kDouble).to(at::kFloat).view({4, 2}),
                  "gathered");
    testing::expect_parts(testing::message_of<ConfigError>([&] { rows.redistribute({}); }),
                          {"a mesh of 1 axes needs a placement for each"});
  });
}

}  // namespace
}  // namespace tessera
