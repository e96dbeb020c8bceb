#include <tessera/intercept/gradient_notice.h>

#include <torch/types.h>
#include <gtest/gtest.h>

#include <optional>

namespace tessera::intercept {
namespace {

TEST(GradientNotice, HearsOfEachGradientAsLongAsItLives) {
  const at::Tensor parameter = torch::ones({2}).requires_grad_();
  int num_heard = 0;
  {
    const GradientNotice notice(parameter, [&] {
      ++num_heard;
      EXPECT_TRUE(parameter.grad().defined());
    });
    parameter.sum().backward();
    (2 * parameter).sum().backward();
  }
  EXPECT_EQ(num_heard, 2);
  parameter.sum().backward();
  EXPECT_EQ(num_heard, 2);
}

TEST(GradientNotice, HearsOfAParameterThatWasGivenOtherMemory) {
  at::Tensor parameter = torch::ones({2}).requires_grad_();
  int num_heard = 0;
  const GradientNotice notice(parameter, [&] { ++num_heard; });
  parameter.set_data(torch::ones({2}, at::kDouble));
  parameter.sum().backward();
  EXPECT_EQ(num_heard, 1);
}

TEST(GradientNotice, LeavesHooksOfOthersAlone) {
  const at::Tensor parameter = torch::ones({2}).requires_grad_();
  int num_heard = 0;
  std::optional<GradientNotice> first(std::in_place, parameter, [&] { ++num_heard; });
  // This drops hooks of the same kind.
  parameter.register_hook([](const at::Tensor& gradient) { return 3 * gradient; });
  std::optional<GradientNotice> second(std::in_place, parameter, [&] { num_heard += 10; });
  parameter.sum().backward();
  EXPECT_EQ(num_heard, 11);
  first.reset();  // the one below
  parameter.sum().backward();
  EXPECT_EQ(num_heard, 21);
  second.reset();
  parameter.sum().backward();
  EXPECT_EQ(num_heard, 21);
  EXPECT_EQ(parameter.grad()[0].item<float>(), 9);
}

}  // namespace
}  // namespace tessera::intercept
