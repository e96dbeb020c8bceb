// What a checkpoint cannot do is said, in backward if it shows only there.
#include <tessera/core/error.h>
#include <tessera/intercept/saved_tensors.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "recompute/blocks.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::leaf;
using testing::message_of;
using testing::waves;

/// Does one thing in forward and another in backward.
template <typename First, typename Second>
at::Tensor checkpoint_of_two(First first, Second second, const at::Tensor& input) {
  const auto calls = std::make_shared<int>(0);
  return recompute([=](const at::Tensor& x) { return ++*calls == 1 ? first(x) : second(x); }, input);
}

TEST(CheckpointRefuses, OtherShapesInTheSecondRun) {
  const at::Tensor y =
      checkpoint_of_two([](const at::Tensor& x) { return (x.exp() * 2).sin(); },
                        [](const at::Tensor& x) { return (x.narrow(0, 0, 2).exp() * 2).sin(); }, leaf({3, 4}));
  expect_parts(
      message_of<ConfigError>([&] { y.sum().backward(); }),
      {"did something else when it ran again in backward", "was Double [3, 4] on cpu", "is now Double [2, 4] on cpu"});
}

TEST(CheckpointRefuses, OtherTypesInTheSecondRun) {
  const at::Tensor y = checkpoint_of_two([](const at::Tensor& x) { return x.sin(); },
                                         [](const at::Tensor& x) { return x.to(at::kFloat).sin(); }, leaf({3}));
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }), {"was Double [3]", "is now Float [3]"});
}

TEST(CheckpointRefuses, ASecondRunThatSavesLess) {
  const at::Tensor y = checkpoint_of_two([](const at::Tensor& x) { return x.exp().sin().cos(); },
                                         [](const at::Tensor& x) { return x.exp(); }, leaf({3}));
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }),
               {"it saved 1 tensors for its gradients, and 3 the first time"});
}

TEST(CheckpointRefuses, ToHideWhatTheSecondRunThrows) {
  const auto first = [](const at::Tensor& x) { return x.sin(); };
  const at::Tensor standard = checkpoint_of_two(
      first, [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("the file is gone"); }, leaf({3}));
  expect_parts(message_of<ConfigError>([&] { standard.sum().backward(); }),
               {"failed when it ran again in backward: the file is gone"});
  const at::Tensor ours =
      checkpoint_of_two(first, [](const at::Tensor&) -> at::Tensor { throw CommError("rank 3 is lost"); }, leaf({3}));
  EXPECT_EQ(message_of<CommError>([&] { ours.sum().backward(); }), "rank 3 is lost");
  const at::Tensor torch = checkpoint_of_two(first, [](const at::Tensor& x) { return x.view({7}).sin(); }, leaf({3}));
  expect_parts(message_of<c10::Error>([&] { torch.sum().backward(); }),
               {"shape '[7]' is invalid", "while the function given to tessera::recompute() ran again in backward"});
}

TEST(CheckpointRefuses, AFunctionThatChangesItsInput) {
  const at::Tensor x = leaf({3}) * 2;
  const auto change = [](at::Tensor y) { return y.add_(1).sin(); };
  expect_parts(message_of<ConfigError>([&] { recompute(change, x); }),
               {"input 0 of recompute() was changed in place by the function", "clone()"});
}

/// Keeps tensors as they are, without LibTorch's look at their versions.
struct Holding : intercept::SavedTensorKeeper {
  struct Slot : intercept::SavedTensorSlot {
    void pack(const at::Tensor& tensor) override { kept = tensor.detach(); }
    at::Tensor unpack() override { return kept; }
    at::Tensor kept;
  };
  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override { return std::make_unique<Slot>(); }
};

TEST(CheckpointRefuses, AnInputThatWasChangedBeforeBackward) {
  const at::Tensor x = waves({3});
  const at::Tensor weight = leaf({3});
  const auto product = [&] { return recompute([weight](const at::Tensor& z) { return (z * weight).sin(); }, x).sum(); };
  const at::Tensor as_usual = product();
  Holding keeper;
  const at::Tensor held = [&] {
    const intercept::SavedTensorScope scope(keeper);
    return product();
  }();
  x.add_(1);
  expect_parts(message_of<c10::Error>([&] { as_usual.backward(); }), {"modified by an inplace operation"});
  expect_parts(message_of<ConfigError>([&] { held.backward(); }),
               {"input 0 of recompute() was changed in place between forward and backward", "clone()"});
}

TEST(CheckpointRefuses, AnInputThatAnOuterCheckpointChanges) {
  const auto inner = [](const at::Tensor& x) { return x.sin(); };
  const auto outer = [inner](const at::Tensor& x) {
    at::Tensor z = x * 2;
    const at::Tensor y = recompute(inner, z);
    z.add_(1);
    return (y * z).sin();
  };
  const at::Tensor y = recompute(outer, leaf({3}));
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }),
               {"changes a tensor in place that its gradients need"});
}

TEST(CheckpointRefuses, WeightsThatWereChangedBeforeBackward) {
  torch::nn::Linear layer(3, 3);
  const at::Tensor y = recompute([layer](const at::Tensor& x) mutable { return layer(x.exp()).sin(); },
                                 waves({2, 3}).to(at::kFloat).requires_grad_(true));
  {
    const torch::NoGradGuard no_grad;
    layer->weight.mul_(0.9);
  }
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }),
               {"was changed in place between forward and backward", "before the optimizer's step"});
}

TEST(CheckpointRefuses, AChangeInPlaceOfWhatGradientsNeed) {
  const auto spoil = [](const at::Tensor& x) {
    at::Tensor y = x * 2;
    const at::Tensor z = y.sin();
    y.add_(1);
    return (z * y).exp();
  };
  EXPECT_THROW(spoil(leaf({3})).sum().backward(), c10::Error) << "without a checkpoint";
  const at::Tensor y = recompute(spoil, leaf({3}));
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }),
               {"changes a tensor in place that its gradients need"});
}

TEST(CheckpointRefuses, RandomNumbersThatAnotherThreadMixedUp) {
  const auto calls = std::make_shared<int>(0);
  const at::Tensor y = recompute(
      [calls](const at::Tensor& x) {
        const at::Tensor dropped = at::dropout(x.exp(), 0.5, true);
        if (++*calls == 1) std::thread([] { at::rand({1}); }).join();
        return at::dropout(dropped, 0.5, true);
      },
      leaf({20}));
  expect_parts(message_of<ConfigError>([&] { y.sum().backward(); }),
               {"drew other random numbers when it ran again", "another thread"});
}

}  // namespace
}  // namespace tessera
