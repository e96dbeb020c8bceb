#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <limits>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using Steps = std::vector<std::int64_t>;

TEST(StepFolders, HaveNamesOfEightDigitsAndMore) {
  EXPECT_EQ(step_folder_name(0), "step-00000000");
  EXPECT_EQ(step_folder_name(20), "step-00000020");
  EXPECT_EQ(step_folder_name(123456789), "step-123456789");
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{99999999}, std::int64_t{100000000}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(step_of_folder(step_folder_name(step)), step);
  }
}

TEST(StepFolders, AreNotTakenForSteps) {
  for (const char* name : {"", "step-", "step-20", "step-000000020", "step-0000002x", "step--0000020", "step-+0000020",
                           "Step-00000020", ".step-00000020.saving", "step-00000020.removing", " step-00000020",
                           "step-9223372036854775808", "step-0x000020", "latest"}) {
    EXPECT_FALSE(step_of_folder(name).has_value()) << name;
  }
}

TEST(StepFolders, AreListedInOrder) {
  const testing::TemporaryFolder folder;
  for (const char* name : {"step-00000040", "step-00000020", "step-100000000", ".step-00000060.saving", "other"}) {
    std::filesystem::create_directory(folder.path() / name);
  }
  folder.write("step-00000050", "no folder", 0600);
  EXPECT_EQ(list_steps(folder.path()), (Steps{20, 40, 100000000}));
  EXPECT_TRUE(list_steps(folder.path() / "none").empty());
  testing::expect_parts(testing::message_of<StorageError>([&] { list_steps(folder.path() / "step-00000050"); }),
                        {"step-00000050", "cannot be listed"});
}

TEST(StepFolders, AreKeptByNumberAndByInterval) {
  const Steps steps = {0, 10, 20, 30, 40, 50};
  EXPECT_EQ(steps_to_remove(steps, 0, 0), Steps{});
  EXPECT_EQ(steps_to_remove(steps, 0, 20), Steps{});
  EXPECT_EQ(steps_to_remove(steps, 2, 0), (Steps{0, 10, 20, 30}));
  EXPECT_EQ(steps_to_remove(steps, 2, 20), (Steps{10, 30}));
  EXPECT_EQ(steps_to_remove(steps, 6, 0), Steps{});
  EXPECT_EQ(steps_to_remove(steps, 7, 0), Steps{});
  EXPECT_EQ(steps_to_remove({}, 1, 1), Steps{});
  testing::expect_parts(testing::message_of<ConfigError>([&] { steps_to_remove(steps, -1, 0); }), {"keep_last", "-1"});
}

}  // namespace
}  // namespace tessera
