#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "optim/twin_training.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using optim::AdamW;
using optim::AdamWOptions;

/// Steps copies of `parameter` with both optimizers; `gradient_of` makes each one's gradient.
template <class GradientOf>
void expect_as_libtorch(const at::Tensor& ours, const at::Tensor& theirs, GradientOf gradient_of) {
  AdamW our_optimizer({ours}, AdamWOptions(0.1));
  torch::optim::AdamW their_optimizer({theirs}, AdamWOptions(0.1));
  for (int step = 0; step < 5; ++step) {
    ours.mutable_grad() = gradient_of(step);
    theirs.mutable_grad() = gradient_of(step);
    our_optimizer.step();
    their_optimizer.step();
  }
  EXPECT_LT(greatest_difference({ours}, {theirs}), 1e-12);
}

TEST(AdamW, TakesGradientsWhoseMemoryHasAnotherOrder) {
  const auto make = [] { return waves({7, 5}, 0.3, at::kDouble).set_requires_grad(true); };
  expect_as_libtorch(make(), make(), [](int step) { return waves({5, 7}, 0.2 + step, at::kDouble).t(); });
}

TEST(AdamW, TakesParametersWithGapsAndLeavesTheGapsAlone) {
  const auto make = [](const at::Tensor& whole) { return whole.narrow(1, 0, 3).detach().set_requires_grad(true); };
  const at::Tensor our_whole = waves({7, 5}, 0.3, at::kDouble);
  const at::Tensor their_whole = our_whole.clone();
  expect_as_libtorch(make(our_whole), make(their_whole),
                     [](int step) { return waves({7, 3}, 0.2 + step, at::kDouble); });
  EXPECT_TRUE(at::allclose(our_whole, their_whole, 0, 1e-12));
}

TEST(AdamW, TakesParametersInChannelsLastOrder) {
  const auto make = [] {
    return waves({4, 3, 5, 2}, 0.3, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  };
  expect_as_libtorch(make(), make(), [](int step) { return waves({4, 3, 5, 2}, 0.2 + step, at::kDouble); });
}

TEST(AdamW, TakesSeveralDtypesInOneGroup) {
  std::vector<at::Tensor> parameters;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    parameters.push_back(at::ones({9}, dtype).set_requires_grad(true));
  }
  AdamW optimizer(parameters, AdamWOptions(0.1).weight_decay(0));
  set_gradients(parameters, 0);
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
  optimizer.step();
  for (const at::Tensor& parameter : parameters) {
    EXPECT_NEAR(parameter[8].item<double>(), 0.9, 1e-2) << parameter.scalar_type();
  }
}

TEST(AdamW, LeavesParametersWithoutGradientAlone) {
  const auto parameters = make_parameters(at::kFloat);
  AdamW optimizer(parameters);
  set_gradients({parameters[1]}, 0);
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 1U);
  EXPECT_TRUE(at::equal(parameters[0], make_parameters(at::kFloat)[0]));
  EXPECT_FALSE(at::equal(parameters[1], make_parameters(at::kFloat)[1]));
}

TEST(AdamW, CountsTheStepsOfEachParameterByItself) {
  const auto parameters = make_parameters(at::kDouble);
  const auto twins = make_parameters(at::kDouble);
  AdamW ours(parameters);
  torch::optim::AdamW theirs(twins, AdamWOptions());
  for (int step = 0; step < 6; ++step) {
    const auto some = [step](const std::vector<at::Tensor>& all) {
      return std::vector<at::Tensor>{all[0], all[static_cast<std::size_t>(1 + step % 2)]};
    };
    for (const auto& [optimizer, all] :
         {std::pair<torch::optim::Optimizer*, decltype(parameters)>{&ours, parameters}, {&theirs, twins}}) {
      set_gradients(some(all), step);
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  EXPECT_EQ(state_of(ours, parameters[0]).step(), 6);
  EXPECT_EQ(state_of(ours, parameters[1]).step(), 3);
  EXPECT_LT(greatest_difference(parameters, twins), 1e-12);
}

TEST(AdamW, StepsAParameterThatIsListedTwiceOnce) {
  const at::Tensor tied = at::ones({3}).set_requires_grad(true);
  tied.mutable_grad() = at::ones({3});
  AdamW optimizer({tied, tied}, AdamWOptions(0.1).weight_decay(0));
  optimizer.step();
  EXPECT_NEAR(tied[0].item<double>(), 0.9, 1e-6);
  EXPECT_EQ(state_of(optimizer, tied).step(), 1);
}

TEST(AdamW, GivesGroupsWhatTheyDoNotSayFromTheDefaults) {
  const auto parameters = make_parameters(at::kFloat);
  std::vector<torch::optim::OptimizerParamGroup> groups{
      {parameters, std::make_unique<AdamWOptions>(AdamWOptions().weight_decay(0.5))}};
  const AdamW optimizer(groups, AdamWOptions(0.25));
  const auto& options = static_cast<const AdamWOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.25);
  EXPECT_EQ(options.weight_decay(), 0.5);
}

TEST(AdamW, ReturnsWhatTheClosureReturns) {
  const at::Tensor parameter = at::ones({3}).set_requires_grad(true);
  AdamW optimizer({parameter}, AdamWOptions(0.1).weight_decay(0));
  const at::Tensor loss = optimizer.step([&] {
    at::Tensor sum = parameter.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<double>(), 3);
  EXPECT_NEAR(parameter[0].item<double>(), 0.9, 1e-6);
}

TEST(AdamW, RefusesSparseGradientsAndStepsNothing) {
  const at::Tensor dense = at::ones({3}).set_requires_grad(true);
  const at::Tensor table = at::ones({10, 4}).set_requires_grad(true);
  AdamW optimizer({dense, table});
  dense.mutable_grad() = at::ones({3});
  table.mutable_grad() = at::ones({10, 4}).to_sparse();
  expect_parts(message_of<ConfigError>([&] { optimizer.step(); }),
               {"AdamW: parameter 1 of group 0", "[10, 4]", "its gradient is sparse"});
  EXPECT_TRUE(at::equal(dense, at::ones({3})));
}

TEST(AdamW, RefusesGradientsAndStatesThatDoNotFit) {
  const at::Tensor parameter = at::ones({3, 4}).set_requires_grad(true);
  AdamW optimizer({parameter});
  parameter.mutable_grad() = at::ones({2, 4});
  expect_parts(message_of<ConfigError>([&] { optimizer.step(); }), {"same shape", "[2, 4]"});
  parameter.mutable_grad() = at::ones({3, 4}, at::kDouble);
  expect_parts(message_of<ConfigError>([&] { optimizer.step(); }), {"same shape, dtype", "Double"});
  parameter.mutable_grad() = at::ones({3, 4});
  optimizer.step();
  state_of(optimizer, parameter).exp_avg(at::zeros({2, 4}));
  expect_parts(message_of<ConfigError>([&] { optimizer.step(); }), {"[3, 4]", "[2, 4]", "another model"});
}

TEST(AdamW, RefusesComplexParameters) {
  const auto make = [] { return AdamW({at::zeros({2}), at::zeros({3}, at::kComplexFloat).set_requires_grad(true)}); };
  expect_parts(message_of<ConfigError>(make),
               {"AdamW: parameter 1 of group 0", "ComplexFloat", "expected a dense parameter of real numbers"});
}

TEST(AdamW, NamesEveryOptionThatIsOutOfRange) {
  const auto options = AdamWOptions(-1).betas({-0.1, 1.0}).eps(-1).weight_decay(-1);
  const auto make = [&] { return AdamW(make_parameters(at::kFloat), options); };
  expect_parts(message_of<ConfigError>(make),
               {"learning rate must not be negative", "first beta must be at least 0", "second beta must be at least 0",
                "eps must not be negative", "weight decay must not be negative"});
}

}  // namespace
}  // namespace tessera::testing
