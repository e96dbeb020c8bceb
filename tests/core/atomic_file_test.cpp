#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::TemporaryFolder;
using testing::text_of_file;

std::size_t num_files(const TemporaryFolder& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) count += entry.exists() ? 1 : 0;
  return count;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(AtomicFile, AppearsWithCommitAndReplacesTheFormer) {
  const TemporaryFolder folder;
  const auto path = folder.write("file", "former", 0644);
  {
    AtomicFile file(path);
    file.write_at(4, bytes_of("later"));
    file.write_at(0, bytes_of("new "));
    EXPECT_EQ(text_of_file(path), "former");
    file.commit();
    EXPECT_EQ(text_of_file(path), "new later");
  }
  EXPECT_EQ(text_of_file(path), "new later");
  EXPECT_EQ(num_files(folder), 1U);
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder.path() / "file");
    file.write_at(0, bytes_of("half"));
    const AtomicFile moved = std::move(file);
    EXPECT_EQ(num_files(folder), 1U);
  }
  EXPECT_EQ(num_files(folder), 0U);
}

TEST(AtomicFile, HasTheRightsThatNewFilesHave) {
  const TemporaryFolder folder;
  const mode_t former = umask(022);
  write_file_atomically(folder.path() / "file", "text");
  umask(former);
  struct stat found{};
  ASSERT_EQ(stat(folder.file("file").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0644U);
}

TEST(AtomicFile, SaysWhyItCannotBe) {
  const TemporaryFolder folder;
  testing::expect_parts(testing::message_of<StorageError>([&] { AtomicFile(folder.path() / "missing" / "file"); }),
                        {"missing/file", "cannot be written", "No such file"});
  testing::expect_parts(testing::message_of<ConfigError>([&] { AtomicFile(folder.path() / ""); }), {"no name"});
  std::filesystem::create_directory(folder.path() / "taken");
  AtomicFile file(folder.path() / "taken");
  testing::expect_parts(testing::message_of<StorageError>([&] { file.commit(); }), {"taken", "its name"});
}

}  // namespace
}  // namespace tessera
