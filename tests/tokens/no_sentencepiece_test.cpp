#include <gtest/gtest.h>

#include "launch/tessera_command.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

TEST(NoSentencePiece, IsSaidWithWhatToInstall) {
  const TemporaryFolder folder;
  folder.write("text", "some text", 0600);
  const TesseraCommand command(
      {"data", "pack", folder.file("out"), folder.file("text"), "--tokenizer", "sentencepiece", "--model", "m"});
  EXPECT_EQ(command.exit_code(), 2);
  expect_parts(command.output(), {"built without", "libsentencepiece-dev"});
}

}  // namespace
}  // namespace tessera::testing
