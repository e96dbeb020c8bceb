#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

TEST(MappedFile, HoldsTheBytesOfTheFile) {
  const testing::TemporaryFolder folder;
  const MappedFile file(folder.write("file", "some text", 0600));
  EXPECT_EQ(file.text(), "some text");
  EXPECT_EQ(file.bytes().size(), 9U);
  EXPECT_EQ(file.name(), folder.file("file"));
  EXPECT_TRUE(MappedFile(folder.write("empty", "", 0600)).text().empty());
}

TEST(MappedFile, SaysWhyItCannotBeRead) {
  const testing::TemporaryFolder folder;
  testing::expect_parts(testing::message_of<StorageError>([&] { MappedFile(folder.path() / "none"); }),
                        {"none", "cannot be read", "No such file"});
  testing::expect_parts(testing::message_of<StorageError>([&] { MappedFile(folder.path()); }), {"no regular file"});
}

TEST(MappedFile, DoesNotWaitForTheOtherEndOfAPipe) {
  const testing::TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  testing::expect_parts(testing::message_of<StorageError>([&] { MappedFile(folder.path() / "pipe"); }),
                        {"pipe", "no regular file"});
}

}  // namespace
}  // namespace tessera
