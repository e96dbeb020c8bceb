#include <tessera/store/secret.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/process.h"
#include "support/error_message.h"
#include "tessera_command.h"

namespace tessera::testing {
namespace {

TEST(SecretCommand, WritesAKeyThatOnlyTheUserReads) {
  const TemporaryFolder folder;
  const TesseraCommand command({"secret", folder.file("key")});
  EXPECT_EQ(command.exit_code(), 0) << command.output();
  EXPECT_EQ(command.output(), "");
  struct stat status{};
  ASSERT_EQ(stat(folder.file("key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(store::Secret::from_file(folder.file("key")).hex() + "\n", text_of_file(folder.file("key")));
}

TEST(SecretCommand, OverwritesNothing) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("key")) << "mine";
  const TesseraCommand command({"secret", folder.file("key")});
  EXPECT_EQ(command.exit_code(), 2);
  expect_parts(command.output(), {folder.file("key"), "not overwritten"});
  EXPECT_EQ(text_of_file(folder.file("key")), "mine");
}

TEST(SecretCommand, PrintsADifferentOneEachTime) {
  const TesseraCommand one({"secret"});
  const TesseraCommand other({"secret"});
  EXPECT_EQ(one.output().size(), 65U);
  EXPECT_NE(one.output(), other.output());
}

}  // namespace
}  // namespace tessera::testing
