#include <tessera/intercept/saved_tensors.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

namespace tessera::intercept {
namespace {

/// Keeps tensors rounded: what comes back shows that it was asked.
struct Rounding : SavedTensorKeeper {
  struct Slot : SavedTensorSlot {
    explicit Slot(int& count) : num_saved(count) {}
    void pack(const at::Tensor& tensor) override {
      ++num_saved;
      kept = tensor.detach().round();
    }
    at::Tensor unpack() override { return kept; }
    int& num_saved;
    at::Tensor kept;
  };
  std::unique_ptr<SavedTensorSlot> make_slot() override { return asks ? std::make_unique<Slot>(num_saved) : nullptr; }
  int num_saved = 0;
  bool asks = true;
};

at::Tensor leaf() { return torch::tensor({1.25, 2.5, -0.75}, at::kDouble).requires_grad_(true); }

at::Tensor gradient_of_square(const std::function<at::Tensor(const at::Tensor&)>& square) {
  const at::Tensor x = leaf();
  square(x).sum().backward();
  return x.grad();
}

TEST(SavedTensorScope, DecidesHowTensorsAreKept) {
  Rounding keeper;
  const at::Tensor gradient = gradient_of_square([&](const at::Tensor& x) {
    const SavedTensorScope scope(keeper);
    return x.pow(2);
  });
  EXPECT_EQ(keeper.num_saved, 1);
  EXPECT_TRUE(at::equal(gradient, 2 * leaf().detach().round()));
}

TEST(SavedTensorScope, LeavesWhatIsSavedOutsideOfItAlone) {
  Rounding keeper;
  {
    const SavedTensorScope scope(keeper);
  }
  const at::Tensor gradient = gradient_of_square([](const at::Tensor& x) { return x.pow(2); });
  EXPECT_EQ(keeper.num_saved, 0);
  EXPECT_TRUE(at::equal(gradient, 2 * leaf().detach()));
}

TEST(SavedTensorScope, KeepsAsUsualWhatTheKeeperDoesNotWant) {
  Rounding keeper;
  keeper.asks = false;
  const at::Tensor gradient = gradient_of_square([&](const at::Tensor& x) {
    const SavedTensorScope scope(keeper);
    return x.pow(2);
  });
  EXPECT_TRUE(at::equal(gradient, 2 * leaf().detach()));
}

TEST(SavedTensorScope, AsksTheInnermost) {
  Rounding outer;
  Rounding inner;
  const SavedTensorScope outer_scope(outer);
  {
    const SavedTensorScope inner_scope(inner);
    leaf().pow(2);
  }
  leaf().pow(2);
  leaf().pow(2);
  EXPECT_EQ(inner.num_saved, 1);
  EXPECT_EQ(outer.num_saved, 2);
}

TEST(SavedTensorScope, IsOfOneThread) {
  Rounding keeper;
  const SavedTensorScope scope(keeper);
  std::thread([] { leaf().pow(2); }).join();
  EXPECT_EQ(keeper.num_saved, 0);
}

TEST(SavedTensorScope, TakesItsPlaceBackFromAnotherEngine) {
  Rounding keeper;
  {
    const SavedTensorScope scope(keeper);
  }
  // As importing torch into an embedded Python does.
  torch::autograd::set_default_engine_stub(
      []() -> torch::autograd::Engine& { return torch::autograd::Engine::get_base_engine(); });
  const SavedTensorScope scope(keeper);
  leaf().pow(2).sum().backward();
  EXPECT_EQ(keeper.num_saved, 1);
}

TEST(SavedTensorScope, LeavesBackwardWithItsCallbacksAndErrorsToTheEngine) {
  Rounding keeper;
  const SavedTensorScope scope(keeper);
  const at::Tensor x = leaf();
  bool called = false;
  x.register_hook([&called](const at::Tensor& gradient) {
    torch::autograd::Engine::get_default_engine().queue_callback([&called] { called = true; });
    return gradient;
  });
  x.pow(2).sum().backward();
  EXPECT_TRUE(called);
  x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("of a hook"); });
  EXPECT_THROW(x.pow(2).sum().backward(), std::runtime_error);
}

}  // namespace
}  // namespace tessera::intercept
