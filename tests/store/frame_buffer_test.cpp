#include "store/frame_stream.h"

#include <gtest/gtest.h>

#include "store/protocol.h"

namespace tessera::store {
namespace {

std::string framed(const std::string& bytes) {
  std::string frame;
  for (std::size_t i = 0; i < kLengthBytes; ++i) frame += static_cast<char>(bytes.size() >> (8 * i) & 0xff);
  return frame + bytes;
}

TEST(FrameBuffer, GivesFramesHoweverTheBytesAreCut) {
  const std::vector<std::string> frames{"first", "", std::string(1000, 'x'), "last"};
  std::string stream;
  for (const auto& frame : frames) stream += framed(frame);
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{7}, stream.size()}) {
    FrameBuffer buffer;
    std::vector<std::string> found;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      buffer.append(std::string_view(stream).substr(at, step));
      while (const auto frame = buffer.next()) found.emplace_back(*frame);
    }
    EXPECT_EQ(found, frames) << step;
    EXPECT_FALSE(buffer.broken());
  }
}

TEST(FrameBuffer, IsBrokenByALengthThatNoFrameMayHave) {
  FrameBuffer buffer;
  buffer.append(std::string("\xfd\xff\xff\x03", 4));
  EXPECT_FALSE(buffer.next());
  EXPECT_TRUE(buffer.broken());
  buffer.append(framed("more"));
  EXPECT_FALSE(buffer.next());
}

TEST(FrameBuffer, WaitsForTheLargestFrame) {
  FrameBuffer buffer;
  buffer.append(std::string("\xfc\xff\xff\x03", 4));
  EXPECT_FALSE(buffer.next());
  EXPECT_FALSE(buffer.broken());
}

}  // namespace
}  // namespace tessera::store
