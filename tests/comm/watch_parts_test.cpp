#include <tessera/core/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "comm/watch/alarm.h"
#include "comm/watch/thread_stack.h"

namespace tessera::comm {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Alarm, ReadsWhatItWrote) {
  const Alarm alarm = alarm_from_json(to_json(Alarm{AlarmKind::kLost, 3, 7, "rank 7 is \"gone\""}));
  EXPECT_EQ(alarm.kind, AlarmKind::kLost);
  EXPECT_EQ(alarm.by, 3);
  EXPECT_EQ(alarm.about, 7);
  EXPECT_EQ(alarm.trigger, "rank 7 is \"gone\"");
  const Answer answer = answer_from_json(to_json(Answer{"{}", {"a", "b"}, {4}}));
  EXPECT_EQ(answer.stack, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(answer.lost, std::vector<int>{4});
  EXPECT_EQ(rank_address_from_json(to_json(RankAddress{"host", 80, "space", 9, "box"})).port, 80);
}

TEST(Alarm, RefusesWhatIsNone) {
  EXPECT_THROW(alarm_from_json("{}"), ConfigError);
  EXPECT_THROW(alarm_from_json("{\"kind\": 9, \"by\": 0, \"about\": 0, \"trigger\": \"\"}"), ConfigError);
  EXPECT_THROW(answer_from_json("[]"), ConfigError);
  EXPECT_THROW(rank_address_from_json(""), ConfigError);
}

std::atomic<bool> stop_looping{false};

[[gnu::noinline]] void loop_where_it_can_be_seen() {
  while (!stop_looping) {
  }
}

TEST(ThreadStack, ShowsWhereAThreadIs) {
  prepare_stacks();
  std::thread thread(&loop_where_it_can_be_seen);
  const auto frames = stack_of(thread.native_handle(), std::chrono::seconds(2));
  stop_looping = true;
  thread.join();
  // Without debug information a function of the program itself may have no name.
  EXPECT_FALSE(frames.empty());
  EXPECT_THAT(frames, Contains(HasSubstr("libc.so")));
}

}  // namespace
}  // namespace tessera::comm
