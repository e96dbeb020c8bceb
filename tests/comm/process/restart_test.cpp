#include <tessera/comm/world.h>

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
  require(world.launcher() == "torchrun", "the launcher is " + world.launcher());
  at::Tensor sum = at::ones({100});
  world.comm().all_reduce(sum);
  require(sum[0].item<float>() == 2, "the sum is wrong");
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
    for (const char* generation : {"0", "1", "2"}) {
      EXPECT_TRUE(agent.store().check({std::string("tessera/") + generation + "/topology"})) << generation;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
