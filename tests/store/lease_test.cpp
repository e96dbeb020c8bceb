#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "store/local_store.h"
#include "store/roles.h"

namespace tessera::testing {

void hold_lease(const Arguments& arguments) {
  die_with_the_test();
  auto client =
      store::StoreClient::connect("127.0.0.1", std::stoi(arguments.at(0)), store::Secret::from_hex(arguments.at(1)),
                                  kLong, {std::chrono::milliseconds(std::stoi(arguments.at(3))), kLong});
  client.lease(arguments.at(2), "died");
  client.set("holds", std::to_string(getpid()));
  client.wait({"never"}, store::kForever);
}

namespace {

using Clock = std::chrono::steady_clock;

TEST(Lease, FiresWhenItsHolderDisconnects) {
  const LocalStore local;
  store::StoreClient watcher = local.client();
  {
    store::StoreClient holder = local.client();
    holder.lease("rank 3", "gone");
    EXPECT_EQ(watcher.try_get("rank 3"), std::nullopt);
  }
  EXPECT_EQ(watcher.get("rank 3", kLong), "gone");
}

TEST(Lease, FiresWhenItsHolderCloses) {
  const LocalStore local;
  store::StoreClient watcher = local.client();
  store::StoreClient holder = local.client();
  holder.lease("rank 3", "first");
  holder.lease("rank 3", "second");
  holder.close();
  EXPECT_EQ(watcher.get("rank 3", kLong), "second");
}

TEST(Lease, DoesNotFireAfterItsRelease) {
  const LocalStore local;
  store::StoreClient watcher = local.client();
  {
    store::StoreClient holder = local.client();
    holder.lease("released", "gone");
    holder.lease("kept", "gone");
    EXPECT_TRUE(holder.release("released"));
    EXPECT_FALSE(holder.release("released"));
  }
  watcher.wait({"kept"}, kLong);
  EXPECT_EQ(watcher.try_get("released"), std::nullopt);
}

TEST(Lease, CannotBeReleasedByAnother) {
  const LocalStore local;
  store::StoreClient watcher = local.client();
  {
    store::StoreClient holder = local.client();
    holder.lease("rank 3", "gone");
    EXPECT_FALSE(watcher.release("rank 3"));
  }
  EXPECT_EQ(watcher.get("rank 3", kLong), "gone");
}

TEST(Lease, FiresAtOnceWhenItsProcessIsKilled) {
  const LocalStore local;
  store::StoreClient watcher = local.client();
  launch::LocalJob job =
      job_of(1, "holds_lease", {std::to_string(local.server.port()), local.secret.hex(), "rank 0", "1000"});
  job.when_started = [&](const std::vector<int>& processes) {
    EXPECT_EQ(watcher.get("holds", kLong), std::to_string(processes[0]));
    EXPECT_EQ(watcher.try_get("rank 0"), std::nullopt);
    const auto killed = Clock::now();
    kill(processes[0], SIGKILL);
    EXPECT_EQ(watcher.get("rank 0", kLong), "died");
    // Far less than the time after which silence alone would have shown it.
    EXPECT_LT(Clock::now() - killed, std::chrono::milliseconds(2500));
  };
  EXPECT_EQ(launch::run(job)[0].exit_code, 128 + SIGKILL);
}

TEST(Lease, FiresWhenItsProcessIsStopped) {
  store::ServerOptions options;
  options.silence_limit = std::chrono::milliseconds(500);
  const LocalStore local(options);
  store::StoreClient watcher = local.client();
  launch::LocalJob job =
      job_of(1, "holds_lease", {std::to_string(local.server.port()), local.secret.hex(), "rank 0", "50"});
  job.when_started = [&](const std::vector<int>& processes) {
    watcher.wait({"holds"}, kLong);
    kill(processes[0], SIGSTOP);
    EXPECT_EQ(watcher.get("rank 0", kLong), "died");
    kill(processes[0], SIGKILL);
  };
  EXPECT_EQ(launch::run(job)[0].exit_code, 128 + SIGKILL);
}

}  // namespace
}  // namespace tessera::testing
