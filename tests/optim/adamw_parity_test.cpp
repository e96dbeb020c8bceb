// The same training with LibTorch's AdamW and with ours.
#include <tessera/optim/adamw.h>

#include <ATen/core/grad_mode.h>
#include <torch/serialize.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "optim/twin_training.h"

namespace tessera::testing {
namespace {

constexpr int kNumSteps = 50;

struct Case {
  at::ScalarType dtype;
  bool amsgrad;
  double tolerance;
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.dtype << (one.amsgrad ? "WithAmsgrad" : "");
}

class AdamWParity : public ::testing::TestWithParam<Case> {
 protected:
  std::vector<at::Tensor> ours_ = make_parameters(GetParam().dtype);
  std::vector<at::Tensor> theirs_ = make_parameters(GetParam().dtype);
  optim::AdamW our_optimizer_{two_groups(ours_, GetParam().amsgrad)};
  torch::optim::AdamW their_optimizer_{two_groups(theirs_, GetParam().amsgrad)};
};

TEST_P(AdamWParity, HoldsAfter50StepsWithWeightDecayAndGroups) {
  train(our_optimizer_, ours_, 0, kNumSteps);
  train(their_optimizer_, theirs_, 0, kNumSteps);
  EXPECT_GT(greatest_difference(ours_, make_parameters(GetParam().dtype)), 0.1);
  RecordProperty("greatest_difference", std::to_string(greatest_difference(ours_, theirs_) * 1e9) + "e-9");
  EXPECT_LT(greatest_difference(ours_, theirs_), GetParam().tolerance);
}

TEST_P(AdamWParity, HoldsForTheStates) {
  train(our_optimizer_, ours_, 0, kNumSteps);
  train(their_optimizer_, theirs_, 0, kNumSteps);
  ASSERT_EQ(our_optimizer_.state().size(), their_optimizer_.state().size());
  for (std::size_t i = 0; i < ours_.size(); ++i) {
    const auto& our = state_of(our_optimizer_, ours_[i]);
    const auto& their = state_of(their_optimizer_, theirs_[i]);
    EXPECT_EQ(our.step(), their.step());
    EXPECT_TRUE(at::allclose(our.exp_avg(), their.exp_avg(), 1e-4, 10 * GetParam().tolerance));
    EXPECT_TRUE(at::allclose(our.exp_avg_sq(), their.exp_avg_sq(), 1e-4, 10 * GetParam().tolerance));
    ASSERT_EQ(our.max_exp_avg_sq().defined(), their.max_exp_avg_sq().defined());
    if (!GetParam().amsgrad) continue;
    EXPECT_TRUE(at::allclose(our.max_exp_avg_sq(), their.max_exp_avg_sq(), 1e-4, 10 * GetParam().tolerance));
  }
}

/// Saves `from` and loads it into `into`, whose training then goes on with the parameters of `from`.
template <class From, class Into>
void hand_over(const From& from, const std::vector<at::Tensor>& parameters, Into& into,
               const std::vector<at::Tensor>& successors) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(into, file);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) at::Tensor(successors[i]).copy_(parameters[i]);
}

TEST_P(AdamWParity, HoldsWhenLibTorchGoesOnWithOurState) {
  train(our_optimizer_, ours_, 0, 20);
  hand_over(our_optimizer_, ours_, their_optimizer_, theirs_);
  train(our_optimizer_, ours_, 20, kNumSteps);
  train(their_optimizer_, theirs_, 20, kNumSteps);
  EXPECT_EQ(state_of(their_optimizer_, theirs_[0]).step(), kNumSteps);
  EXPECT_LT(greatest_difference(ours_, theirs_), GetParam().tolerance);
}

TEST_P(AdamWParity, HoldsWhenOursGoesOnWithLibTorchsState) {
  train(their_optimizer_, theirs_, 0, 20);
  hand_over(their_optimizer_, theirs_, our_optimizer_, ours_);
  train(their_optimizer_, theirs_, 20, kNumSteps);
  train(our_optimizer_, ours_, 20, kNumSteps);
  EXPECT_EQ(state_of(our_optimizer_, ours_[0]).step(), kNumSteps);
  EXPECT_LT(greatest_difference(ours_, theirs_), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(All, AdamWParity,
                         ::testing::Values(Case{at::kFloat, false, 1e-6}, Case{at::kFloat, true, 1e-6},
                                           Case{at::kDouble, false, 1e-12}, Case{at::kDouble, true, 1e-12}),
                         ::testing::PrintToStringParamName());

TEST(AdamWState, ResumesWithTheSameBits) {
  const auto through = make_parameters(at::kFloat);
  optim::AdamW first(two_groups(through, true));
  train(first, through, 0, 20);
  const auto resumed = make_parameters(at::kFloat);
  optim::AdamW second(two_groups(resumed, true));
  hand_over(first, through, second, resumed);
  train(first, through, 20, kNumSteps);
  train(second, resumed, 20, kNumSteps);
  EXPECT_EQ(greatest_difference(through, resumed), 0);
}

}  // namespace
}  // namespace tessera::testing
