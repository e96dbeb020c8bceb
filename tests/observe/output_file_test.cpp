#include "observe/output_file.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

TEST(OutputFile, AppendsOrReplaces) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("a/b");
  OutputFile(path, OutputFile::Mode::kReplace).write("one");
  OutputFile(path, OutputFile::Mode::kAppend).write("two");
  EXPECT_EQ(testing::text_of_file(path), "onetwo");
  OutputFile(path, OutputFile::Mode::kReplace).write("three");
  EXPECT_EQ(testing::text_of_file(path), "three");
}

TEST(OutputFile, SaysWhatCannotBeMadeOrWritten) {
  const testing::TemporaryFolder folder;
  folder.write("file", "", 0600);
  const auto open = [&] { OutputFile(folder.file("file/below"), OutputFile::Mode::kAppend); };
  testing::expect_parts(testing::message_of<StorageError>(open), {"file", "cannot be made"});
  OutputFile full("/dev/full", OutputFile::Mode::kAppend);
  const auto message = testing::message_of<StorageError>([&] { full.write("x"); });
  testing::expect_parts(message, {"/dev/full", "No space left"});
}

}  // namespace
}  // namespace tessera::observe
