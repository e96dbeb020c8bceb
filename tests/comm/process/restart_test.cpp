#include <tessera/comm/world.h>
#include <tessera/store/client.h>
#include <tessera/store/server.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <gtest/gtest.h>

#include <csignal>

#include "comm/process/roles.h"
#include "support/require.h"

namespace tessera::testing {

/// Arguments: the backend, and "die" when the ranks should be killed in the middle.
void check_restart(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).init_timeout(std::chrono::seconds(20)));
  at::Tensor sum = at::ones({100});
  world.comm().all_reduce(sum);
  require_equal(sum[0].item<float>(), 2, "the sum is wrong");
  world.comm().split({1, 0}, "other").barrier();
  if (arguments.back() == "die") raise(SIGKILL);
}

namespace {

/// Jobs of one torchrun agent, whose store outlives them.
class Agent {
 public:
  Agent() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.port = 0;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  std::vector<launch::RankResult> run(int generation, const Arguments& arguments) const {
    auto job = job_of(2, "restart", arguments);
    job.variables = {{"MASTER_PORT", std::to_string(store_->getPort())},
                     {"TORCHELASTIC_RUN_ID", "job"},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                     {"TORCHELASTIC_RESTART_COUNT", std::to_string(generation)}};
    return launch::run(job);
  }
  c10d::TCPStore& store() const { return *store_; }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

TEST(Restart, ANewGenerationDoesNotSeeTheKeysOfADeadOne) {
  for (const char* backend : {"gloo", "shm"}) {
    const Agent agent;
    for (int generation = 0; generation < 2; ++generation) {
      for (const auto& rank : agent.run(generation, {backend, "die"})) {
        EXPECT_EQ(rank.exit_code, 128 + SIGKILL) << backend << " generation " << generation << ":\n" << rank.output;
      }
    }
    expect_success(agent.run(2, {backend, "live"}));
    for (const std::string generation : {"0", "1", "2"}) {
      EXPECT_TRUE(agent.store().check({"tessera/" + generation + "/store"})) << generation;
      EXPECT_FALSE(agent.store().check({"tessera/" + generation + "/topology"})) << "it went through an open store";
    }
  }
}

TEST(Restart, ANewGenerationDoesNotSeeTheKeysThatALauncherKept) {
  const auto secret = store::Secret::mint();
  const store::StoreServer server("127.0.0.1", 0, secret);
  const auto run = [&](int generation, const Arguments& arguments) {
    auto job = job_of(2, "restart", arguments);
    job.variables = {{"TESSERA_RUN", "1"},
                     {"TESSERA_STORE", "127.0.0.1:" + std::to_string(server.port())},
                     {"TESSERA_SECRET", secret.hex()},
                     {"TORCHELASTIC_RESTART_COUNT", std::to_string(generation)}};
    return launch::run(job);
  };
  for (int generation = 0; generation < 2; ++generation) {
    for (const auto& rank : run(generation, {"gloo", "die"})) {
      EXPECT_EQ(rank.exit_code, 128 + SIGKILL) << "generation " << generation << ":\n" << rank.output;
    }
  }
  expect_success(run(2, {"gloo", "live"}));
  auto client = store::StoreClient::connect("127.0.0.1", server.port(), secret, std::chrono::seconds(5));
  EXPECT_TRUE(client.check({"tessera/0/topology", "tessera/1/topology", "tessera/2/topology"}));
}

}  // namespace
}  // namespace tessera::testing
