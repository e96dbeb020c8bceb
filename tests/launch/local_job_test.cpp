#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <gtest/gtest.h>

#include <csignal>

namespace tessera::launch {
namespace {

LocalJob shell_job(int num_ranks, const std::string& script) {
  LocalJob job;
  job.num_ranks = num_ranks;
  job.command = {"sh", "-c", script};
  job.timeout = std::chrono::seconds(20);
  return job;
}

TEST(LocalJob, TellsEachRankItsPlace) {
  LocalJob job = shell_job(4, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $EXTRA");
  job.ranks_per_node = 2;
  job.variables["EXTRA"] = "more";
  const auto results = run(job);
  EXPECT_EQ(results[3].output, "3/4 1/2 1 more\n");
  EXPECT_EQ(results[0].output, "0/4 0/2 0 more\n");
}

TEST(LocalJob, GivesExitCodesAndBothStreams) {
  const auto results = run(shell_job(2, "echo out; echo err >&2; [ $RANK = 0 ] && exit 5; kill -SEGV $$"));
  EXPECT_EQ(results[0].exit_code, 5);
  EXPECT_EQ(results[0].output, "out\nerr\n");
  EXPECT_EQ(results[1].exit_code, 128 + SIGSEGV);
}

TEST(LocalJob, KillsWhatOutlivesItsTime) {
  LocalJob job = shell_job(1, "exec sleep 60");
  job.timeout = std::chrono::seconds(0);
  EXPECT_EQ(run(job)[0].exit_code, 137);
}

TEST(LocalJob, RefusesAProgramThatIsNotThere) {
  LocalJob job;
  job.command = {"/no/such/program"};
  EXPECT_THROW(run(job), ConfigError);
}

}  // namespace
}  // namespace tessera::launch
