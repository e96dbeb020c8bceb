#include "checkpoint/load/file_reader.h"

#include <tessera/core/descriptor.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

class FileViewTest : public ::testing::Test {
 protected:
  FileViewTest() {
    for (std::size_t i = 0; i < 100'000; ++i) text_ += static_cast<char>(i * i * 131 + i * 7 + 3);
    std::ofstream(path(), std::ios::binary) << text_;
    file_ = Descriptor(open(path().c_str(), O_RDONLY | O_CLOEXEC));
  }

  std::filesystem::path path() const { return folder_.path() / "file"; }
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  testing::TemporaryFolder folder_;
  std::string text_;
  Descriptor file_;
};

TEST_F(FileViewTest, ShowsTheBytesOfTheFile) {
  const auto view = FileView::of(file_.get(), 5'003, 60'000);
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(view->holds(5'003, 60'000));
  EXPECT_FALSE(view->holds(5'003, 60'001));
  EXPECT_FALSE(view->holds(1, 10));
  EXPECT_EQ(text_of(view->bytes(5'003, 60'000)), text_.substr(5'003, 60'000));
  EXPECT_EQ(text_of(view->bytes(30'000, 7)), text_.substr(30'000, 7));
}

TEST_F(FileViewTest, MovesWithItsPages) {
  auto view = FileView::of(file_.get(), 0, 100);
  auto other = FileView::of(file_.get(), 50'000, 100);
  ASSERT_TRUE(view && other);
  *view = std::move(*other);
  other.reset();
  EXPECT_EQ(text_of(view->bytes(50'000, 100)), text_.substr(50'000, 100));
}

// A page behind the end would end the process with a signal.
TEST_F(FileViewTest, IsRefusedWhereTheFileWasCutShort) {
  ASSERT_EQ(truncate(path().c_str(), 8'000), 0);
  EXPECT_FALSE(FileView::of(file_.get(), 0, 60'000).has_value());
  EXPECT_TRUE(FileView::of(file_.get(), 0, 8'000).has_value());
}

TEST_F(FileViewTest, IsRefusedWhereNothingCanBeMapped) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  EXPECT_FALSE(FileView::of(reading.get(), 0, 4'096).has_value());
}

}  // namespace
}  // namespace tessera::checkpoints
