// Systems that lack what saves and loads use where they can: an exchange of names, direct I/O, io_uring. The kernel
// refuses the call to real ranks, which then do it in another way.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/saved_step.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/process/numbered_state.h"
#include "checkpoint/process/refused_call.h"
#include "checkpoint/process/roles.h"
#include "support/cold_files.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

struct RefusalCase {
  const char* call;
  const char* logged;  // empty: nothing
};

std::ostream& operator<<(std::ostream& out, const RefusalCase& refusal) { return out << refusal.call; }

class RefusedCall : public ::testing::TestWithParam<RefusalCase> {};

TEST_P(RefusedCall, IsDoneWithout) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path() / "checkpoints";
  const auto results = launch::run(job_of(2, "saves without a call", {root.string(), GetParam().call}));
  expect_success(results);
  for (const launch::RankResult& result : results) expect_parts(result.output, {GetParam().logged});
  EXPECT_EQ(list_steps(root), (std::vector<std::int64_t>{1, 2}));
  for (const std::int64_t step : {1, 2}) EXPECT_EQ(faults_of(SavedStep(root / step_folder_name(step))), "");
  EXPECT_EQ(version_of(SavedStep(root / step_folder_name(1))), 2);
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernel, RefusedCall,
    ::testing::Values(RefusalCase{"exchange", ""},
                      RefusalCase{"direct", "is written through the page cache: opening it for direct I/O: Invalid"},
                      RefusalCase{"ring", "is written through the page cache: io_uring: Operation not permitted"},
                      RefusalCase{"submission",
                                  "is written through the page cache: direct I/O: Operation not permitted"}),
    [](const auto& one) { return std::string(one.param.call); });

}  // namespace

void save_without_a_call(const Arguments& arguments) {
  const World world = init(WorldOptions().backend("gloo"));
  refuse_call(arguments.at(1));
  CheckpointFolder checkpoints(arguments.at(0), world);
  const auto save = [&](std::int64_t step, std::int64_t version) {
    const SaveReport report = checkpoints.save(step, numbered_state(world, step, version));
    require(report.saved, report.error);
  };
  save(1, 1);
  save(1, 2);  // exchanged for the first
  save(2, 1);
  if (world.rank() == 0) forget_files(arguments.at(0));
  world.comm().barrier();
  const auto step = checkpoints.load_newest([&world](const SavedStep& saved) {
    require(faults_of_part(world, saved).empty(), "another part than was saved");
    require(faults_of(saved).empty(), "faults");
  });
  require_equal(step, 2, "another step is the newest");
}

}  // namespace tessera::testing
