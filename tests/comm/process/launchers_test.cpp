// One program under every launcher: whoever starts it, its ranks meet in our store.
#include <tessera/comm/world.h>
#include <tessera/flight/recorder.h>
#include <tessera/store/client.h>
#include <tessera/store/server.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/process/roles.h"
#include "support/mpi_job.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

void move_variable(const char* from, const char* to) {
  setenv(to, getenv(from), 1);
  unsetenv(from);
}

/// Tells this process what srun would instead of what `tessera run` does.
void pretend_srun() {
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_JOB_ID", "77", 1);
  setenv("SLURM_NODEID", "0", 1);
  setenv("SLURM_STEP_NUM_NODES", "1", 1);
  setenv("SLURM_STEP_NODELIST", "a-node-without-address", 1);
  move_variable("RANK", "SLURM_PROCID");
  move_variable("LOCAL_RANK", "SLURM_LOCALID");
  move_variable("WORLD_SIZE", "SLURM_NTASKS");
  move_variable("MASTER_PORT", "SLURM_STEP_RESV_PORTS");
  for (const char* name : {"LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"}) unsetenv(name);
}

}  // namespace

/// Arguments: the launcher that is expected.
void check_hello(const Arguments& arguments) {
  if (arguments.at(0) == "srun") pretend_srun();
  const World world = init(WorldOptions().init_timeout(std::chrono::seconds(20)));
  require_equal(world.launcher(), arguments.at(0), "the launcher is " + world.launcher());
  require_equal(world.size(), 2, "there are " + std::to_string(world.size()) + " ranks");
  at::Tensor sum = at::ones({3});
  world.comm().all_reduce(sum);
  require_equal(sum[0].item<float>(), 2, "the sum is wrong");
}

namespace {

/// Where processes without a launcher leave a secret: what they leave can be looked at.
launch::LocalJob in_folder(launch::LocalJob job, const TemporaryFolder& folder) {
  job.variables["XDG_RUNTIME_DIR"] = folder.path();
  return job;
}

launch::LocalJob torchrun_job(const Arguments& flags) {
  launch::LocalJob job = job_of(1, "hello", {"torchrun"});
  Arguments command = {TESSERA_TORCHRUN, "--no-python", "--nproc-per-node", "2"};
  command.insert(command.end(), flags.begin(), flags.end());
  job.command.insert(job.command.begin(), command.begin(), command.end());
  job.launcher_variables = false;
  return job;
}

void expect_hello(const launch::LocalJob& job) {
  const TemporaryFolder folder;
  expect_success(in_folder(job, folder));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "tessera")) << "no secret was left there: where did they meet?";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "tessera"));
}

TEST(Launchers, APlainLoopNeedsNoSecretOnOneHost) { expect_hello(job_of(2, "hello", {"environment"})); }

TEST(Launchers, Mpirun) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_hello(mpi_job_of(2, "hello", {"mpirun"}));
}

TEST(Launchers, Srun) { expect_hello(job_of(2, "hello", {"srun"})); }

TEST(Launchers, TorchrunWithARendezvousOfItsOwn) {
  if (std::string(TESSERA_TORCHRUN).empty()) GTEST_SKIP() << "this LibTorch comes without torchrun";
  expect_hello(torchrun_job({"--standalone"}));
}

TEST(Launchers, TorchrunWithAFixedAddress) {
  if (std::string(TESSERA_TORCHRUN).empty()) GTEST_SKIP() << "this LibTorch comes without torchrun";
  expect_hello(torchrun_job({"--master-addr", "127.0.0.1", "--master-port", std::to_string(launch::free_port())}));
}

TEST(Launchers, TesseraRunHostsTheStoreAndGivesTheSecret) {
  const auto secret = store::Secret::mint();
  const store::StoreServer server("127.0.0.1", 0, secret);
  auto job = job_of(2, "hello", {"tessera run"});
  job.variables = {{"TESSERA_RUN", "1"},
                   {"TESSERA_STORE", "127.0.0.1:" + std::to_string(server.port())},
                   {"TESSERA_SECRET", secret.hex()},
                   {"TORCHELASTIC_RESTART_COUNT", "4"},
                   {"MASTER_ADDR", "192.0.2.1"}};
  expect_success(job);
  auto client = store::StoreClient::connect("127.0.0.1", server.port(), secret, std::chrono::seconds(5));
  EXPECT_EQ(client.try_get("tessera/4/topology"), "blocks");
  EXPECT_GT(client.delete_prefix("tessera/4/"), 0);
  EXPECT_EQ(client.num_keys(), 0) << "keys outside of the generation";
}

TEST(Launchers, TheBlackBoxShowsWhatEndedRanksDid) {
  const flight::BlackBox box;
  auto job = job_of(1, "init", {"1000"});
  job.variables["TESSERA_BLACK_BOX"] = box.path();
  expect_success(job);
  const auto snapshot = box.read();
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->rank, 0);
  ASSERT_EQ(snapshot->calls.size(), 1U);
  EXPECT_EQ(snapshot->calls[0].operation, "barrier");
}

}  // namespace
}  // namespace tessera::testing
