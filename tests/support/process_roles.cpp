#include "support/process_roles.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

namespace tessera::testing {
namespace {

int play(const Role& role, const Arguments& arguments) {
  try {
    role(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    return exit_code(error);
  }
}

}  // namespace

int run_tests_or_role(int argc, char** argv, const std::map<std::string, Role>& roles) {
  const Arguments all(argv + 1, argv + argc);
  if (all.size() < 2 || all[0] != "--role") {
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  const auto role = roles.find(all[1]);
  if (role == roles.end()) {
    std::printf("there is no role %s\n", all[1].c_str());
    return 64;
  }
  return play(role->second, Arguments(all.begin() + 2, all.end()));
}

launch::LocalJob job_of(int num_ranks, const std::string& role, const Arguments& arguments) {
  launch::LocalJob job;
  job.num_ranks = num_ranks;
  job.command = {launch::own_path(), "--role", role};
  job.command.insert(job.command.end(), arguments.begin(), arguments.end());
  job.timeout = std::chrono::seconds(60);
  return job;
}

void expect_success(const std::vector<launch::RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << "rank " << rank << " wrote:\n" << results[rank].output;
  }
}

void expect_success(const launch::LocalJob& job) { expect_success(launch::run(job)); }

}  // namespace tessera::testing
