#include <tessera/core/error.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>

#include "store/local_store.h"
#include "store/moved_store.h"
#include "store/roles.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {

void serve(const Arguments& arguments) {
  die_with_the_test();
  store::ServerOptions options;
  options.silence_limit = std::chrono::milliseconds(std::stoi(arguments.at(2)));
  const store::StoreServer server("127.0.0.1", 0, store::Secret::from_hex(arguments.at(1)), options);
  const std::string unfinished = arguments.at(0) + ".new";
  std::ofstream(unfinished) << server.port() << std::flush;
  std::filesystem::rename(unfinished, arguments.at(0));
  while (true) pause();
}

void stall(const Arguments& /*arguments*/) {
  die_with_the_test();
  store::ServerOptions options;
  options.silence_limit = std::chrono::milliseconds(500);
  const LocalStore local(options);
  const store::ClientOptions pings{std::chrono::milliseconds(50), std::chrono::milliseconds(500)};
  store::StoreClient holder = local.client(pings);
  store::StoreClient watcher = local.client(pings);
  holder.lease("holder", "died");
  raise(SIGSTOP);
  // The server looks for the silent every sixteenth of a second.
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  if (watcher.check({"holder"}))
    throw std::runtime_error("the lease of a client that was stopped with all others fired");
  holder.add("counter", 1);
}

namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

/// One that never pings while the test lasts.
store::ClientOptions silent() { return {hours(1), hours(2)}; }

TEST(Liveness, AClientThatIsSilentIsDroppedAndItsLeasesFire) {
  MovedStore store;
  store::StoreClient watcher = store.client();
  store::StoreClient mute = store.client(silent());
  mute.lease("mute", "silent");
  store.move(seconds(5));
  EXPECT_EQ(watcher.try_get("mute"), std::nullopt);
  store.move(seconds(1));
  EXPECT_EQ(watcher.get("mute", kLong), "silent");
  EXPECT_THROW(mute.num_keys(), CommError);
}

TEST(Liveness, AClientWithoutALeaseMayBeSilentForAsLongAsADebuggerTakes) {
  MovedStore store;
  store::StoreClient mute = store.client(silent());
  mute.lease("mute", "silent");
  mute.release("mute");
  store.move(minutes(1));
  EXPECT_EQ(mute.num_keys(), 0);
}

TEST(Liveness, AClientWithoutALeaseIsDroppedAfterALimitOfItsOwn) {
  store::ServerOptions options;
  options.idle_limit = seconds(20);
  MovedStore store(options);
  store::StoreClient mute = store.client(silent());
  store.move(seconds(21));
  EXPECT_THROW(mute.num_keys(), CommError);
}

/// For clients that stay by their pings, which come by the clock of the system.
store::ServerOptions impatient() {
  store::ServerOptions options;
  options.silence_limit = milliseconds(400);
  return options;
}

TEST(Liveness, AnIdleClientStaysConnectedByItsPings) {
  const LocalStore local(impatient());
  store::StoreClient idle = local.client({milliseconds(50), milliseconds(5000)});
  store::StoreClient mute = local.client(silent());
  idle.lease("idle", "silent");
  mute.lease("mute", "silent");
  // The last words of the one were before those of the other.
  EXPECT_TRUE(eventually([&] { return local.server.num_clients() == 1; }));
  EXPECT_EQ(idle.add("alive", 1), 1);
}

TEST(Liveness, AClientThatOnlyWaitsStaysConnected) {
  const LocalStore local(impatient());
  store::StoreClient waiting = local.client({milliseconds(50), milliseconds(5000)});
  store::StoreClient mute = local.client(silent());
  waiting.lease("waiting", "silent");
  mute.lease("mute", "silent");
  EXPECT_EQ(waiting.get("mute", kLong), "silent");
  EXPECT_EQ(waiting.num_keys(), 1);
}

TEST(Liveness, AServerThatStopsFailsPendingCalls) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "port").string();
  const auto secret = store::Secret::mint();
  launch::LocalJob job = job_of(1, "serves", {file, secret.hex(), "5000"});
  job.when_started = [&](const std::vector<int>& processes) {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
    int port = 0;
    std::ifstream(file) >> port;
    auto client = store::StoreClient::connect("127.0.0.1", port, secret, kLong, {milliseconds(50), milliseconds(500)});
    auto waiting = std::async(std::launch::async, [&] { client.wait({"never"}, store::kForever); });
    EXPECT_EQ(client.add("counter", 1), 1);
    kill(processes[0], SIGSTOP);
    const auto start = Clock::now();
    expect_parts(message_of<CommError>([&] { waiting.get(); }),
                 {"127.0.0.1:" + std::to_string(port), "silent for more than 500 ms"});
    EXPECT_LT(Clock::now() - start, milliseconds(5000));
    EXPECT_THROW(client.add("counter", 1), CommError);
    kill(processes[0], SIGKILL);
  };
  EXPECT_EQ(launch::run(job)[0].exit_code, 128 + SIGKILL);
}

TEST(Liveness, NobodyIsTakenForDeadBecauseTheMachineStoodStill) {
  launch::LocalJob job = job_of(1, "stalls");
  job.when_started = [](const std::vector<int>& processes) {
    siginfo_t news{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(processes[0]), &news, WSTOPPED), 0);
    std::this_thread::sleep_for(milliseconds(1000));
    kill(processes[0], SIGCONT);
  };
  const auto result = launch::run(job)[0];
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(Liveness, AServerThatWasPausedTakesNobodyForLost) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "port").string();
  const auto secret = store::Secret::mint();
  launch::LocalJob job = job_of(1, "serves", {file, secret.hex(), "500"});
  job.when_started = [&](const std::vector<int>& processes) {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file); }));
    int port = 0;
    std::ifstream(file) >> port;
    // The server's limit passes while it is stopped.
    auto client =
        store::StoreClient::connect("127.0.0.1", port, secret, kLong, {milliseconds(50), milliseconds(15'000)});
    client.lease("client", "silent");
    kill(processes[0], SIGSTOP);
    std::this_thread::sleep_for(milliseconds(1000));
    kill(processes[0], SIGCONT);
    EXPECT_EQ(client.add("counter", 1), 1);
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_EQ(client.add("counter", 1), 2);
    kill(processes[0], SIGKILL);
  };
  EXPECT_EQ(launch::run(job)[0].exit_code, 128 + SIGKILL);
}

}  // namespace
}  // namespace tessera::testing
