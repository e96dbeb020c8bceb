#include "observe/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>

#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

template <typename Number>
Number number_at(const std::string& bytes, std::size_t place) {
  Number number{};
  std::memcpy(&number, bytes.data() + place, sizeof(number));
  return number;
}

TEST(EventFile, FramesRecordsWithLengthAndChecksums) {
  const std::string record = tf_record("some data");
  ASSERT_EQ(record.size(), 8 + 4 + 9 + 4U);
  EXPECT_EQ(number_at<std::uint64_t>(record, 0), 9U);
  EXPECT_EQ(number_at<std::uint32_t>(record, 8), masked_crc32c(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12, 9), "some data");
  EXPECT_EQ(number_at<std::uint32_t>(record, 21), masked_crc32c("some data"));
}

TEST(EventFile, EncodesScalarsWithStepAndTime) {
  const std::string event = scalars_event(12.5, 42, {{"train/loss", 2.5}, {"x", -1}});
  ProtobufReader fields(event);
  EXPECT_EQ(std::bit_cast<double>(fields.next()->value), 12.5);
  EXPECT_EQ(fields.next()->value, 42U);
  const auto summary = fields.next();
  EXPECT_EQ(summary->number, 5);
  EXPECT_TRUE(fields.is_whole());
  ProtobufReader values(summary->bytes);
  ProtobufReader first(values.next()->bytes);
  EXPECT_EQ(first.next()->bytes, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(first.next()->value)), 2.5F);
  ProtobufReader second(values.next()->bytes);
  EXPECT_EQ(second.next()->bytes, "x");
  EXPECT_TRUE(values.is_whole());
}

TEST(EventFile, GivesEachRunAFileOfItsOwn) {
  const testing::TemporaryFolder folder;
  const auto runs = folder.path() / "runs" / "one";
  const auto first = make_event_file(runs, {.config = "lr = 1"});
  const auto second = make_event_file(runs, {});
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(runs)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 2U);
  for (const auto& file : files) {
    EXPECT_EQ(file.filename().string().find("events.out.tfevents."), 0U);
    EXPECT_GT(std::filesystem::file_size(file), 16U);
  }
}

}  // namespace
}  // namespace tessera::observe
