#include "store/server_loop.h"

#include <gtest/gtest.h>

namespace tessera::store {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class StrangerBudgetTest : public ::testing::Test {
 protected:
  StrangerBudget::TimePoint start_;
  StrangerBudget budget_{0.01, milliseconds(50), start_};
};

TEST_F(StrangerBudgetTest, LetsACrowdInAtFirst) {
  for (int i = 0; i < 900; ++i) budget_.spend(microseconds(50), start_);
  EXPECT_FALSE(budget_.overdrawn());
}

TEST_F(StrangerBudgetTest, IsOverdrawnByAFloodUntilItHasEarnedEnough) {
  budget_.spend(milliseconds(51), start_);
  EXPECT_TRUE(budget_.overdrawn());
  // One millisecond is owed and one is wanted, at a hundredth of the time.
  EXPECT_EQ(budget_.solvent_at(start_), start_ + milliseconds(200));
  budget_.spend(microseconds(0), start_ + milliseconds(200));
  EXPECT_FALSE(budget_.overdrawn());
}

TEST_F(StrangerBudgetTest, ForgetsWhatAnHonestClientTook) {
  budget_.spend(milliseconds(51), start_);
  budget_.give_back(milliseconds(2));
  EXPECT_FALSE(budget_.overdrawn());
}

TEST_F(StrangerBudgetTest, SavesOnlySoMuch) {
  budget_.spend(milliseconds(51), start_ + seconds(3600));
  EXPECT_TRUE(budget_.overdrawn());
  budget_.give_back(seconds(1));
  budget_.spend(milliseconds(51), start_ + seconds(3600));
  EXPECT_TRUE(budget_.overdrawn());
}

TEST_F(StrangerBudgetTest, BoundsTheShareOfALongFlood) {
  milliseconds spent{0};
  auto now = start_;
  while (now < start_ + seconds(100)) {
    budget_.spend(milliseconds(1), now);
    ++spent;
    now = budget_.overdrawn() ? budget_.solvent_at(now) : now + milliseconds(1);
  }
  EXPECT_LE(spent, milliseconds(1000 + 51));
  EXPECT_GE(spent, milliseconds(900));
}

}  // namespace
}  // namespace tessera::store
