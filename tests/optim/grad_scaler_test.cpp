#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/scaler_training.h"
#include "support/error_message.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(GradScalerRanks, AllSkipWhenOneHasAnInfinity) { run_threads(4, check_that_all_skip); }

TEST(GradScalerRanks, SurviveAnInfinityIn1Of20Updates) { run_threads(4, check_that_training_survives); }

TEST(GradScalerRanks, DecideAlongEachAxisOfAList) {
  run_threads(4, [](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    GradScaler scaler({mesh["dp"], mesh["tp"]});
    const at::Tensor weight = at::ones({2}).set_requires_grad(true);
    weight.mutable_grad() = at::full({2}, world.rank() == 2 ? kInfinity : 1.0);
    torch::optim::SGD optimizer({weight}, 0.5);
    require(!scaler.step(optimizer), "all skip");
  });
}

TEST(GradScalerRanks, NoticeThatTheirScalesDiffer) {
  const auto run = [] {
    run_threads(2, [](const World& world) {
      GradScaler scaler(world);
      if (world.rank() == 1) scaler.set_state({128, 0});
      const at::Tensor weight = at::ones({2}).set_requires_grad(true);
      torch::optim::SGD optimizer({weight}, 0.5);
      scaler.step(optimizer);
    });
  };
  expect_parts(message_of<ConfigError>(run), {"from 128 to 65536", "same options and state"});
}

TEST(GradScalerRanks, NeedOneSmallAllReduceAnUpdate) {
  const World world = fake_world(0, 64);
  GradScaler scaler(DeviceMesh(world, {{"dp", 8}, {"tp", 8}}));
  const at::Tensor weight = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer({weight}, 0.5);
  scaler.unscale(optimizer);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(fake_traffic(world).num_calls, 1U);
}

/// One process, one weight, SGD.
class GradScalerAlone : public ::testing::Test {
 protected:
  GradScaler make(const GradScalerOptions& options) { return GradScaler(world_, options); }
  void set_gradient(double value) { weight_.mutable_grad() = at::full({2}, value); }
  double weight() const { return weight_[0].item<double>(); }

  World world_ = fake_world(0, 1);
  at::Tensor weight_ = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer_{{weight_}, 0.5};
};

TEST_F(GradScalerAlone, GrowsAfterTheIntervalAndFallsAfterAnInfinity) {
  GradScaler scaler = make(GradScalerOptions().init_scale(8).growth_interval(3));
  std::vector<double> scales;
  for (const double gradient : {1.0, 1.0, 1.0, 1.0, kInfinity, 1.0, 1.0, -kInfinity, std::nan(""), 1.0, 1.0, 1.0}) {
    set_gradient(gradient);
    scaler.step(optimizer_);
    scaler.update();
    scales.push_back(scaler.current_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 16, 16, 8, 8, 8, 4, 2, 2, 2, 4}));
  EXPECT_EQ(scaler.num_skipped(), 3);
}

TEST_F(GradScalerAlone, ClipsBetweenUnscaleAndStep) {
  GradScaler scaler = make(GradScalerOptions().init_scale(1024));
  scaler.scale((weight_ * at::tensor({3.0F, 4.0F})).sum()).backward();
  scaler.unscale(optimizer_);
  EXPECT_NEAR(clip_grad_norm({weight_}, 1.0), 5.0, 1e-6);
  EXPECT_TRUE(scaler.step(optimizer_));
  EXPECT_NEAR(weight(), 1 - 0.5 * 0.6, 1e-6);
}

TEST_F(GradScalerAlone, ScalesALossInFp16WithoutOverflow) {
  GradScaler scaler = make({});
  const at::Tensor scaled = scaler.scale(at::full({}, 2.0, at::kHalf));
  EXPECT_EQ(scaled.item<double>(), 2.0 * 65536);
}

TEST_F(GradScalerAlone, GoesOnFromItsState) {
  GradScaler first = make(GradScalerOptions().init_scale(8).growth_interval(3));
  GradScaler second = make(GradScalerOptions().growth_interval(3));
  set_gradient(1);
  first.step(optimizer_);
  first.update();
  EXPECT_EQ(first.state(), (GradScalerState{8, 1}));
  second.set_state(first.state());
  for (int i = 0; i < 2; ++i) {
    set_gradient(1);
    second.step(optimizer_);
    second.update();
  }
  EXPECT_EQ(second.state(), (GradScalerState{16, 0}));
  expect_parts(message_of<ConfigError>([&] { second.set_state({0, 0}); }), {"expected a state with a scale above 0"});
}

TEST_F(GradScalerAlone, DividesAGradientThatIsListedTwiceOnce) {
  GradScaler scaler = make(GradScalerOptions().init_scale(4));
  torch::optim::SGD tied({weight_, weight_}, 0.5);
  set_gradient(4);
  scaler.unscale(tied);
  EXPECT_EQ(weight_.grad()[0].item<double>(), 1);
}

TEST_F(GradScalerAlone, DividesTheValuesOfASparseGradient) {
  GradScaler scaler = make(GradScalerOptions().init_scale(4));
  weight_.mutable_grad() = at::full({2}, 4.0).to_sparse();
  scaler.unscale(optimizer_);
  EXPECT_TRUE(at::equal(weight_.grad().to_dense(), at::ones({2})));
}

TEST_F(GradScalerAlone, DoesNothingWhenDisabled) {
  GradScaler scaler = make(GradScalerOptions().enabled(false));
  const at::Tensor loss = weight_.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  set_gradient(1);
  scaler.unscale(optimizer_);
  EXPECT_TRUE(scaler.step(optimizer_));
  scaler.update();
  EXPECT_EQ(weight(), 0.5);
}

TEST_F(GradScalerAlone, DecidesForEachOptimizerAndLowersTheScaleForAll) {
  GradScaler scaler = make(GradScalerOptions().init_scale(8));
  const at::Tensor other = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD second({other}, 0.5);
  set_gradient(kInfinity);
  other.mutable_grad() = at::full({2}, 8.0);
  EXPECT_FALSE(scaler.step(optimizer_));
  EXPECT_TRUE(scaler.step(second));
  EXPECT_TRUE(scaler.found_infinity());
  scaler.update();
  EXPECT_FALSE(scaler.found_infinity());
  EXPECT_EQ(scaler.current_scale(), 4);
}

TEST_F(GradScalerAlone, RefusesCallsOutOfOrder) {
  GradScaler scaler = make({});
  const auto expect_refused = [](const auto& call, std::string_view words) {
    expect_parts(message_of<ConfigError>(call), {words});
  };
  const auto unscale = [&] { scaler.unscale(optimizer_); };
  expect_refused([&] { scaler.update(); }, "update() without a step() before it");
  set_gradient(1);
  unscale();
  expect_refused(unscale, "unscale() was called twice for one optimizer");
  expect_refused([&] { scaler.set_state({4, 0}); }, "set_state() between unscale() and update()");
  scaler.step(optimizer_);
  expect_refused([&] { scaler.step(optimizer_); }, "step() was called twice for one optimizer");
  expect_refused(unscale, "or after its step()");
}

TEST_F(GradScalerAlone, NeedsAnAxis) {
  expect_parts(message_of<ConfigError>([] { GradScaler(std::vector<Ranks>{}); }), {"expected at least one axis"});
}

TEST_F(GradScalerAlone, RefusesGradientsInFp16) {
  GradScaler scaler = make({});
  const at::Tensor half = at::ones({2}, at::kHalf).set_requires_grad(true);
  half.mutable_grad() = at::ones({2}, at::kHalf);
  torch::optim::SGD optimizer({half}, 0.5);
  expect_parts(message_of<ConfigError>([&] { scaler.unscale(optimizer); }), {"found Half", "[2]", "Autocast"});
}

TEST_F(GradScalerAlone, SaysSoWhenNoScaleHelps) {
  GradScaler scaler = make({});
  const auto train = [&] {
    for (int i = 0; i < 1000; ++i) {
      set_gradient(std::nan(""));
      scaler.step(optimizer_);
      scaler.update();
    }
  };
  expect_parts(message_of<ConfigError>(train), {"not finite", "143 skipped updates", "the model or the data"});
  EXPECT_EQ(weight(), 1);
}

TEST_F(GradScalerAlone, NamesEveryOptionThatIsOutOfRange) {
  const auto options = GradScalerOptions().init_scale(0).growth_factor(1).backoff_factor(1).growth_interval(0);
  expect_parts(message_of<ConfigError>([&] { make(options); }),
               {"init_scale", "growth_factor", "backoff_factor", "growth_interval"});
}

TEST(GradScalerOptions, AreReadFromToml) {
  GradScalerOptions options;
  parse_config("init_scale = 1024.0\ngrowth_interval = 5", "test", options);
  EXPECT_EQ(options.init_scale(), 1024);
  EXPECT_EQ(options.growth_interval(), 5);
}

}  // namespace
}  // namespace tessera::testing
