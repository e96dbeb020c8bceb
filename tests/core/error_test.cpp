#include <tessera/core/error.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(ExitCode, TellsTheKindsOfErrorsApart) {
  EXPECT_EQ(exit_code(ConfigError("x")), 2);
  EXPECT_EQ(exit_code(CommError("x")), 3);
  EXPECT_EQ(exit_code(StorageError("x")), 4);
  EXPECT_EQ(exit_code(InternalError("x")), 70);
}

TEST(ExitCode, IsOneForAnythingElse) {
  EXPECT_EQ(exit_code(Error("x")), 1);
  EXPECT_EQ(exit_code(std::runtime_error("x")), 1);
}

TEST(ExitCode, LooksAtTheThrownTypeBehindAReference) {
  try {
    throw CommError("peer 3 is gone");
  } catch (const std::exception& error) {
    EXPECT_EQ(exit_code(error), 3);
    EXPECT_STREQ(error.what(), "peer 3 is gone");
  }
}

}  // namespace
}  // namespace tessera
