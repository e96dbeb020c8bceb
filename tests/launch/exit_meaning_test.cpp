#include "launch/process.h"

#include <gtest/gtest.h>

#include <csignal>

#include "support/error_message.h"

namespace tessera::launch {
namespace {

using testing::expect_parts;

constexpr int exited(int code) { return code << 8; }

TEST(ExitMeaning, NamesTheKindOfErrorOfATesseraProgram) {
  expect_parts(exit_meaning(exited(2)), {"exited with code 2", "ConfigError"});
  expect_parts(exit_meaning(exited(3)), {"exited with code 3", "CommError"});
  expect_parts(exit_meaning(exited(4)), {"exited with code 4", "StorageError"});
  expect_parts(exit_meaning(exited(70)), {"exited with code 70", "InternalError"});
  EXPECT_EQ(exit_meaning(exited(1)), "exited with code 1");
}

TEST(ExitMeaning, NamesSignals) {
  expect_parts(exit_meaning(SIGSEGV), {"was ended by SIGSEGV", "Segmentation fault"});
  expect_parts(exit_meaning(SIGKILL), {"SIGKILL", "memory"});
  expect_parts(exit_meaning(exited(139)), {"exited with code 139", "SIGSEGV"});
  EXPECT_EQ(exit_meaning(exited(200)), "exited with code 200");
}

TEST(ExitMeaning, GivesTheCodesOfAShell) {
  EXPECT_EQ(exit_code_of(exited(7)), 7);
  EXPECT_EQ(exit_code_of(SIGTERM), 143);
}

}  // namespace
}  // namespace tessera::launch
