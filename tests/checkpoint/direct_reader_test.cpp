#include "checkpoint/load/direct_reader.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "support/cold_files.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kBlock = DirectReader::kMostBytes;

class DirectReaderTest : public ::testing::Test {
 protected:
  DirectReaderTest() : text_(9'000'017, '\0') {
    std::mt19937 random(1);
    std::generate(text_.begin(), text_.end(), [&random] { return static_cast<char>(random()); });
    std::ofstream(path(), std::ios::binary) << text_;
    testing::forget_files(folder_.path());
    int error = 0;
    reader_ = DirectReader::make(error);
  }

  void SetUp() override {
    if (!testing::is_on_disk(folder_.path())) GTEST_SKIP() << "temporary files are in memory here, not on a disk";
    ASSERT_NE(reader_, nullptr);
  }

  std::filesystem::path path() const { return folder_.path() / "file"; }
  static std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  testing::TemporaryFolder folder_;
  std::string text_;
  std::unique_ptr<DirectReader> reader_;
};

TEST_F(DirectReaderTest, BringsBlockAfterBlockPastThePageCache) {
  const FileReader file(path());
  for (const std::size_t first : {0, 1, 4'095, 5'003}) {
    for (std::size_t offset = first; offset < text_.size(); offset += kBlock) {
      const std::size_t length = std::min(kBlock, text_.size() - offset);
      const auto bytes = reader_->read(file, offset, length, text_.size());
      EXPECT_TRUE(text_of(bytes) == std::string_view(text_).substr(offset, length)) << offset;
    }
  }
  EXPECT_TRUE(file.is_mostly_on_disk(0, text_.size()));
  EXPECT_EQ(text_of(reader_->read(file, 8, 4, 12)), text_.substr(8, 4));
}

TEST_F(DirectReaderTest, GoesWhereItIsSent) {
  const FileReader file(path());
  std::mt19937 random(2);
  const auto any = [&random](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count)(random);
  };
  for (int round = 0; round < 60; ++round) {
    std::size_t offset = any(text_.size() - 1);
    const std::size_t length = 1 + any(std::min(kBlock, text_.size() - offset) - 1);
    const std::size_t end = offset + length + any(text_.size() - offset - length);
    // Some of what was asked for ahead is taken, the rest is left.
    for (std::size_t taken = any(4); taken > 0 && offset + length <= end; --taken, offset += length) {
      const auto bytes = reader_->read(file, offset, length, end);
      ASSERT_TRUE(text_of(bytes) == std::string_view(text_).substr(offset, length)) << offset << " " << length;
    }
  }
}

TEST_F(DirectReaderTest, GoesFromFileToFile) {
  const std::string other(3 * kBlock, 'x');
  std::ofstream(folder_.path() / "other", std::ios::binary) << other;
  const FileReader first(path());
  const FileReader second(folder_.path() / "other");
  for (std::size_t offset = 0; offset < other.size(); offset += kBlock) {
    EXPECT_TRUE(text_of(reader_->read(first, offset, kBlock, other.size())) == text_.substr(offset, kBlock));
    EXPECT_TRUE(text_of(reader_->read(second, offset, kBlock, other.size())) == other.substr(offset, kBlock));
  }
}

TEST_F(DirectReaderTest, ReadsAFileWhoseNameIsGone) {
  const FileReader file(path());
  std::filesystem::remove(path());
  EXPECT_TRUE(text_of(reader_->read(file, 77, kBlock, 5 * kBlock)) == text_.substr(77, kBlock));
}

TEST_F(DirectReaderTest, LeavesItToTheFileToTellWhatIsWrong) {
  const FileReader file(path());
  ASSERT_EQ(truncate(path().c_str(), static_cast<off_t>(kBlock + 100)), 0);
  EXPECT_TRUE(text_of(reader_->read(file, 0, kBlock, 4 * kBlock)) == text_.substr(0, kBlock));
  EXPECT_TRUE(reader_->read(file, kBlock, kBlock, 4 * kBlock).empty());
  std::vector<std::byte> into(kBlock);
  testing::expect_parts(testing::message_of<StorageError>([&] { file.read(kBlock, into); }), {"was cut short"});
}

TEST_F(DirectReaderTest, HasNoRoomForLongerBlocks) {
  const FileReader file(path());
  EXPECT_TRUE(reader_->read(file, 0, kBlock + 1, text_.size()).empty());
  EXPECT_TRUE(text_of(reader_->read(file, 4'095, kBlock, text_.size())) == text_.substr(4'095, kBlock));
}

}  // namespace
}  // namespace tessera::checkpoints
