#include "launch/run_plan.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <tessera/launch/machine.h>
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::launch {
namespace {

using testing::expect_parts;
using testing::message_of;

std::vector<std::vector<int>> one_each(Binding /*binding*/, int num_ranks, const std::vector<int>& allowed) {
  return std::vector<std::vector<int>>(static_cast<std::size_t>(num_ranks), {allowed.front()});
}

RunPlan plan_of(const RunOptions& options) { return resolve(options, one_each); }

std::string fault_of(const RunOptions& options) {
  return message_of<ConfigError>([&] { plan_of(options); });
}

TEST(RunPlan, CountsRanksByNumberOrCores) {
  EXPECT_EQ(plan_of(RunOptions()).num_ranks, 1);
  EXPECT_EQ(plan_of(RunOptions().nproc_per_node("7")).num_ranks, 7);
  EXPECT_EQ(plan_of(RunOptions().nproc_per_node("cpu")).num_ranks, num_allowed_cores());
  for (const char* text : {"0", "-1", "gpu", "", "2x"}) {
    expect_parts(fault_of(RunOptions().nproc_per_node(text)), {"nproc_per_node", text});
  }
}

TEST(RunPlan, SharesTheCoresAmongTheThreadsOfTheRanks) {
  EXPECT_EQ(plan_of(RunOptions()).num_threads, num_allowed_cores());
  EXPECT_EQ(plan_of(RunOptions().nproc_per_node("1000")).num_threads, 1);
}

TEST(RunPlan, ReadsTheRendezvousInEitherForm) {
  EXPECT_EQ(plan_of(RunOptions()).master_address, "127.0.0.1");
  EXPECT_EQ(plan_of(RunOptions()).master_port, 0);
  EXPECT_EQ(plan_of(RunOptions().rdzv_endpoint("here:29500")).master_address, "here");
  EXPECT_EQ(plan_of(RunOptions().rdzv_endpoint("here:29500")).master_port, 29500);
  EXPECT_EQ(plan_of(RunOptions().rdzv_endpoint("here")).master_port, 0);
  EXPECT_EQ(plan_of(RunOptions().rdzv_endpoint("[::1]:80")).master_address, "::1");
  EXPECT_EQ(plan_of(RunOptions().master_addr("there").master_port(1)).master_address, "there");
  expect_parts(fault_of(RunOptions().rdzv_endpoint("a:b")), {"HOST:PORT", "a:b"});
  expect_parts(fault_of(RunOptions().rdzv_endpoint("a:1").master_port(2)), {"not both"});
  expect_parts(fault_of(RunOptions().master_port(65536)), {"65535", "65536"});
}

TEST(RunPlan, RefusesWhatItCannotDo) {
  expect_parts(fault_of(RunOptions().nnodes(0)), {"nnodes", "0"});
  expect_parts(fault_of(RunOptions().node_rank(1)), {"node_rank", "1"});
  expect_parts(fault_of(RunOptions().secret_file("key")), {"secret_file", "nnodes is 1"});
  expect_parts(fault_of(RunOptions().rdzv_timeout(std::chrono::seconds(0))), {"rdzv_timeout"});
  expect_parts(fault_of(RunOptions().max_restarts(-1)), {"max_restarts", "-1"});
  expect_parts(fault_of(RunOptions().tee(4).log_dir("x")), {"tee", "4"});
  expect_parts(fault_of(RunOptions().tee(0)), {"tee 0", "log_dir"});
}

TEST(RunPlan, NeedsAPlaceAndASecretForSeveralNodes) {
  const testing::TemporaryFolder folder;
  const std::string key = folder.file("key");
  std::ofstream(key) << store::Secret::mint().hex() << "\n";
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  const auto two = [] { return RunOptions().nnodes(2); };
  expect_parts(fault_of(two().rdzv_endpoint("here:29500")), {"secret_file", "tessera secret"});
  expect_parts(fault_of(two().secret_file(key)), {"rdzv_endpoint", "HOST:PORT"});
  expect_parts(fault_of(two().secret_file(key).rdzv_endpoint("here")), {"rdzv_endpoint", "here"});
  expect_parts(fault_of(two().secret_file(folder.file("none")).rdzv_endpoint("here:1")), {"none"});
  expect_parts(fault_of(two().node_rank(2)), {"node_rank", "0 to 1", "2"});
  const RunPlan plan = plan_of(two().secret_file(key).rdzv_endpoint("here:29500").node_rank(1));
  EXPECT_EQ(plan.store_address, "here");
  EXPECT_EQ(plan.store_port, 29500);
  EXPECT_EQ(plan.master_address, "here");
  EXPECT_EQ(plan.secret->hex() + "\n", testing::text_of_file(key));
}

TEST(RunPlan, BindsWhenAskedTo) {
  EXPECT_TRUE(plan_of(RunOptions().bind(Binding::kNone)).cpus.empty());
  EXPECT_EQ(plan_of(RunOptions().bind(Binding::kCore).nproc_per_node("3")).cpus.size(), 3U);
  EXPECT_EQ(plan_of(RunOptions()).cpus.empty(), num_numa_nodes() <= 1);
}

TEST(RunPlan, NumbersRanksNodeByNode) {
  RunPlan plan = plan_of(RunOptions().nproc_per_node("4"));
  plan.node_rank = 2;
  plan.first_rank = 8;
  plan.world_size = 12;
  const Environment environment = environment_of(plan, 1, 5, "/box");
  EXPECT_EQ(environment.at("RANK"), "9");
  EXPECT_EQ(environment.at("LOCAL_RANK"), "1");
  EXPECT_EQ(environment.at("WORLD_SIZE"), "12");
  EXPECT_EQ(environment.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(environment.at("GROUP_RANK"), "2");
  EXPECT_EQ(environment.at("TORCHELASTIC_RESTART_COUNT"), "5");
}

}  // namespace
}  // namespace tessera::launch
