// Who has the job's secret takes part, and nobody else does.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/store/client.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "comm/process/roles.h"
#include "store/raw_connection.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_file.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;

bool appears(const std::filesystem::path& path) {
  for (int i = 0; i < 2000 && !std::filesystem::exists(path); ++i) std::this_thread::sleep_for(10ms);
  return std::filesystem::exists(path);
}

/// Under its name only when it is whole.
void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  std::filesystem::rename(path + ".part", path);
}

/// Each rank has a secret of its own.
void disagree_on_the_secret() { setenv("TESSERA_SECRET", store::Secret::mint().hex().c_str(), 1); }

}  // namespace

/// Arguments: "disagree", "option" and the file's path, or nothing.
void check_secret(const Arguments& arguments) {
  WorldOptions options;
  options.init_timeout(1500ms);
  if (!arguments.empty() && arguments[0] == "disagree") disagree_on_the_secret();
  if (!arguments.empty() && arguments[0] == "option") options.secret_file(arguments.at(1)).init_timeout(20s);
  const World world = init(options);
  world.comm().barrier();
}

/// Arguments: a folder to say in that the job runs, and to hear in that it may go on.
void check_watched(const Arguments& arguments) {
  const World world = init(WorldOptions().init_timeout(20s));
  world.comm().barrier();
  if (world.rank() == 0) write_file(arguments.at(0) + "/port", getenv("MASTER_PORT"));
  require(appears(arguments.at(0) + "/go"), "nobody lets this job go on");
  at::Tensor sum = at::ones({1});
  world.comm().split({1, 0}, "later").all_reduce(sum);
  require_equal(sum.item<float>(), 2, "the sum is wrong");
}

/// Arguments: the backend. Rank 0, which hosts the store, dies before the first group is made.
void check_host_dies(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).init_timeout(20s));
  if (world.rank() == 0) raise(SIGKILL);
  std::this_thread::sleep_for(300ms);
  world.comm().barrier();
}

namespace {

launch::LocalJob secret_job(const std::map<std::string, std::string>& variables, const Arguments& arguments = {}) {
  auto job = job_of(2, "secret", arguments);
  job.variables = variables;
  return job;
}

void expect_refused(const launch::LocalJob& job, std::initializer_list<std::string_view> parts) {
  const auto start = std::chrono::steady_clock::now();
  const auto results = launch::run(job);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, kConfigError) << results[rank].output;
    EXPECT_FALSE(results[rank].output.empty());
    expect_parts(results[rank].output, parts);
    expect_parts(results[rank].output,
                 {"this is rank " + std::to_string(rank), "TESSERA_SECRET_FILE", "tessera secret FILE"});
  }
}

TEST(Secret, ComesFromAVariable) {
  auto job = job_of(2, "init", {"20000"});
  job.variables = {{"TESSERA_SECRET", store::Secret::mint().hex()}};
  expect_success(job);
}

TEST(Secret, ComesFromAFile) {
  const TemporaryFile file(store::Secret::mint().hex() + "\n");
  auto job = job_of(2, "init", {"20000"});
  job.variables = {{"TESSERA_SECRET_FILE", file.path()}};
  job.ranks_per_node = 1;
  expect_success(job);
  expect_success(secret_job({{"TESSERA_SECRET_FILE", "/nowhere"}}, {"option", file.path()}));
}

TEST(Secret, IsRefusedWhenOthersCanReadItsFile) {
  const TemporaryFile file(store::Secret::mint().hex());
  std::filesystem::permissions(file.path(), std::filesystem::perms(0640));
  for (const auto& rank : launch::run(secret_job({{"TESSERA_SECRET_FILE", file.path()}}))) {
    EXPECT_EQ(rank.exit_code, kConfigError) << rank.output;
    expect_parts(rank.output, {file.path(), "chmod 600"});
  }
}

TEST(Secret, ThatDiffersIsRefusedAtOnceAndRankZeroMissesThatRank) {
  const auto results = launch::run(secret_job({}, {"disagree"}));
  EXPECT_EQ(results[0].exit_code, kCommError) << results[0].output;
  expect_parts(results[0].output, {"1 of 2 ranks came within 1500 ms"});
  EXPECT_EQ(results[1].exit_code, kCommError) << results[1].output;
  expect_parts(results[1].output, {"does not have this secret", "give all processes of the job the same secret"});
}

TEST(Secret, IsNeededOnSeveralHosts) {
  auto job = secret_job({});
  job.ranks_per_node = 1;
  expect_refused(job, {"several hosts", "1 of its 2 ranks are here"});
}

TEST(Secret, IsNeededWhereOtherHostsReach) {
  expect_refused(secret_job({{"MASTER_ADDR", "192.0.2.1"}}), {"MASTER_ADDR is 192.0.2.1", "127.0.0.1"});
}

TEST(Secret, IsNeededForTheStoreOfALauncher) {
  for (const auto& rank : launch::run(secret_job({{"TESSERA_STORE", "127.0.0.1:9"}}))) {
    EXPECT_EQ(rank.exit_code, kConfigError) << rank.output;
    expect_parts(rank.output, {"TESSERA_STORE", "TESSERA_SECRET"});
  }
}

void expect_closed_to_strangers(int port) {
  const RawConnection silent(port);
  const RawConnection talkative(port);
  talkative.send(std::string("\x04\0\0\0tessera/0/topology", 23) + std::string(4096, 'x'));
  bool ended = false;
  const std::string heard = talkative.receive(5s, &ended);
  EXPECT_TRUE(ended);
  EXPECT_LT(heard.size(), 16U) << "more than TLS's word that it understands nothing";
  EXPECT_EQ(heard.find("blocks"), std::string::npos);
  const auto another = store::Secret::mint();
  const auto refusal = message_of<CommError>(
      [&] { store::StoreClient::connect("127.0.0.1", port, another, 5s).set("tessera/0/topology", "table"); });
  expect_parts(refusal, {"does not have this secret"});
  EXPECT_TRUE(silent.ends_within(10s)) << "a connection that proves nothing stays open";
}

TEST(Secret, KeepsStrangersOutOfARunningJob) {
  const TemporaryFolder folder;
  auto job = job_of(2, "watched", {folder.path()});
  job.variables["XDG_RUNTIME_DIR"] = folder.path();
  job.when_started = [&](const std::vector<int>&) {
    EXPECT_TRUE(appears(folder.path() / "port"));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "tessera"))
        << "the secret is published for longer than needed";
    expect_closed_to_strangers(std::stoi("0" + text_of_file(folder.path() / "port")));
    write_file(folder.file("go"), "");
  };
  expect_success(job);
}

TEST(Secret, TheEndOfTheStoresHostIsReported) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    const auto start = std::chrono::steady_clock::now();
    const auto results = launch::run(job_of(2, "host_dies", {backend}));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    EXPECT_EQ(results[0].exit_code, 128 + SIGKILL);
    EXPECT_EQ(results[1].exit_code, kCommError) << results[1].output;
    expect_parts(results[1].output, {"the connection to the store at 127.0.0.1:", "is lost", "rank 0"});
  }
}

}  // namespace
}  // namespace tessera::testing
