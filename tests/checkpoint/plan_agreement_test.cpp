#include "checkpoint/plan/plan_agreement.h"

#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/require.h"

namespace tessera::checkpoints {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::require;
using testing::require_equal;

constexpr std::uint64_t kLarge = 1U << 30;
constexpr std::int64_t kAgreedRows = 768;
constexpr std::int64_t kAgreedColumns = 512;

/// Rank by rank as many rows of one tensor.
HeldSlice rows_of(const World& world, const std::string& name) {
  const std::int64_t share = kAgreedRows / world.size();
  const Slice slice = Slice::whole({kAgreedRows, kAgreedColumns}).narrow(0, {share * world.rank(), share});
  return {{name, slice, at::zeros({share, kAgreedColumns})}, "model"};
}

RankState agreed_state_of(const World& world, std::int64_t step) {
  RankState state;
  state.slices.push_back(rows_of(world, "w"));
  state.values["step"] = step;
  return state;
}

/// A tensor more, on the last rank alone.
RankState larger_state_of(const World& world, std::int64_t step) {
  RankState state = agreed_state_of(world, step);
  if (world.rank() == world.size() - 1) {
    state.slices.push_back(whole_slice("model", "more", at::zeros({5})));
  }
  return state;
}

TEST(PlanAgreement, KeepsPlanAndCopyLayoutWhileTheSlicesAreTheSame) {
  run_threads(2, [](const World& world) {
    PlanAgreement agreement(world.comm(), kLarge);
    const AgreedSave first = agreement.agree(agreed_state_of(world, 10));
    const AgreedSave second = agreement.agree(agreed_state_of(world, 20));
    require_equal(second.plan, first.plan, "the plan is the one of the first save");
    require_equal(second.copy_layout, first.copy_layout, "and so is the layout of the copy");
    require_equal(std::get<std::int64_t>(second.values.at("step")), 20, "but values are those of this save");
  });
}

TEST(PlanAgreement, MakesBothAnewWhenOneRankHoldsOtherSlices) {
  run_threads(3, [](const World& world) {
    PlanAgreement agreement(world.comm(), kLarge);
    const auto expect_own_layout = [&](const AgreedSave& agreed) {
      require_equal(*agreed.copy_layout, CopyLayout::of(*agreed.plan, world.rank()), "the layout is that of the plan");
    };
    const AgreedSave first = agreement.agree(larger_state_of(world, 10));
    expect_own_layout(first);
    const AgreedSave second = agreement.agree(agreed_state_of(world, 20));
    require(second.plan != first.plan && second.copy_layout != first.copy_layout, "neither is the first one");
    expect_own_layout(second);
    const AgreedSave third = agreement.agree(larger_state_of(world, 30));
    require(third.plan != second.plan && third.copy_layout != second.copy_layout, "nor the second one");
    expect_own_layout(third);
  });
}

TEST(PlanAgreement, KeepsWhatItHadWhenSlicesDoNotFitTogether) {
  run_threads(2, [](const World& world) {
    PlanAgreement agreement(world.comm(), kLarge);
    const AgreedSave first = agreement.agree(agreed_state_of(world, 10));
    RankState gap = agreed_state_of(world, 20);
    if (world.rank() == 1) gap.slices.clear();
    expect_parts(message_of<ConfigError>([&] { agreement.agree(gap); }), {"\"w\"", "no rank holds element"});
    const AgreedSave third = agreement.agree(agreed_state_of(world, 30));
    require(third.plan == first.plan && third.copy_layout == first.copy_layout, "what fits is the first one");
  });
}

}  // namespace
}  // namespace tessera::checkpoints
