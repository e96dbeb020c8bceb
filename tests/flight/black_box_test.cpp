#include <tessera/core/error.h>
#include <tessera/flight/recorder.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

namespace tessera::flight {
namespace {

TEST(BlackBox, IsEmptyUntilARecorderIntroducesItself) {
  const BlackBox box;
  EXPECT_FALSE(box.read());
  Recorder recorder(box.path());
  EXPECT_FALSE(box.read());
  recorder.introduce(3, 8);
  ASSERT_TRUE(box.read());
  EXPECT_EQ(box.read()->rank, 3);
  EXPECT_EQ(box.read()->world_size, 8);
  EXPECT_EQ(box.read()->process, getpid());
}

TEST(BlackBox, TellsWhatAKilledProcessWasDoing) {
  const BlackBox box;
  const std::string path = box.path();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Recorder recorder(path);
    recorder.introduce(1, 2);
    CallStart call;
    call.group = recorder.add_group("world", {0, 1});
    call.sequence = 7;
    call.operation = "all_reduce";
    call.where = std::source_location::current();
    recorder.begin(call);
    recorder.conclude("rank 0 is stopped");
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto snapshot = box.read();
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->process, child);
  EXPECT_EQ(snapshot->verdict, "rank 0 is stopped");
  ASSERT_EQ(snapshot->calls.size(), 1U);
  EXPECT_EQ(snapshot->calls[0].operation, "all_reduce");
  EXPECT_EQ(snapshot->calls[0].sequence, 7U);
  EXPECT_EQ(snapshot->calls[0].state, CallState::kStarted);
  EXPECT_EQ(std::filesystem::path(snapshot->calls[0].file).filename(), "black_box_test.cpp");
}

TEST(BlackBox, OfAProcessWithoutALauncherIsReadByOthers) {
  Recorder recorder;
  recorder.introduce(5, 8);
  const auto read = read_black_box(recorder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 5);
  EXPECT_FALSE(read_black_box("/proc/self/fd/9999"));
  EXPECT_FALSE(read_black_box(""));
}

TEST(BlackBox, OfAnotherSizeIsRefused) {
  EXPECT_THROW(Recorder("/dev/null"), StorageError);
  EXPECT_THROW(Recorder("/proc/self/fd/9999"), StorageError);
}

}  // namespace
}  // namespace tessera::flight
