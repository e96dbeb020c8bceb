// Jobs whose disk is full, read-only or gone: a save says what is wrong and what to do, training goes on, and when the
// disk is well again the next save is saved. The disk is a small one, mounted in a namespace of the job.
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "checkpoint/process/own_disk.h"
#include "checkpoint/process/roles.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

struct Trouble {
  const char* name;
  const char* mode;
  const char* logged;
};

std::ostream& operator<<(std::ostream& out, const Trouble& trouble) {
  return out << trouble.name << " " << trouble.mode;
}

class DiskTrouble : public ::testing::TestWithParam<Trouble> {};

TEST_P(DiskTrouble, DoesNotEndTraining) {
  const auto& [name, mode, logged] = GetParam();
  const TemporaryFolder folder;
  const auto results = launch::run(job_of(1, "has a disk", {folder.path().string(), name, mode}));
  if (results[0].exit_code == kNoNamespaces) GTEST_SKIP() << results[0].output;
  expect_success(results);
  expect_parts(results[0].output, {logged});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the disk was of the job alone";
}

constexpr const char* kNotSaved = "was not saved";
constexpr const char* kMadeAnew = "is gone, with the steps in it, and is made anew";

INSTANTIATE_TEST_SUITE_P(
    Disk, DiskTrouble,
    ::testing::Values(Trouble{"full", "waiting", kNotSaved}, Trouble{"full", "asynchronous", kNotSaved},
                      Trouble{"nearly_full", "waiting", kNotSaved}, Trouble{"nearly_full", "asynchronous", kNotSaved},
                      Trouble{"read_only", "asynchronous", kNotSaved}, Trouble{"vanished", "waiting", kMadeAnew},
                      Trouble{"vanishing", "waiting", kNotSaved}, Trouble{"vanishing", "asynchronous", kNotSaved}),
    [](const auto& one) { return std::string(one.param.name) + "_" + one.param.mode; });

}  // namespace
}  // namespace tessera::testing
