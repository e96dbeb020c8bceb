#include <tessera/flight/process_state.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace tessera::flight {
namespace {

TEST(ProcessState, TellsAStoppedProcessFromALivingAndADeadOne) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_EQ(state_of_process(child).condition, RankCondition::kSilent);
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(state_of_process(child).condition, RankCondition::kStopped);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(state_of_process(child).condition, RankCondition::kDead);
  EXPECT_EQ(process_space(), process_space());
}

}  // namespace
}  // namespace tessera::flight
