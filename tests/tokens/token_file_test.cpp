#include <tessera/core/error.h>
#include <tessera/tokens/token_writer.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"
#include "tokens/raw_file.h"

namespace tessera::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

TEST(TokenType, HasANameAndASize) {
  for (const char* name : {"uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"}) {
    EXPECT_EQ(to_string(parse_token_type(name)), name);
  }
  expect_parts(message_of<ConfigError>([] { parse_token_type("float"); }), {"float", "uint16"});
  EXPECT_EQ(token_type_for(65'499), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65'500), TokenType::kInt32);
}

TEST(TokenFormat, HasAName) {
  for (const char* name : {"megatron", "llmc-gpt2", "llmc-llama3"}) {
    EXPECT_EQ(to_string(parse_token_format(name)), name);
  }
  EXPECT_THROW(parse_token_format("json"), ConfigError);
}

TEST(TokenFile, ReadsEveryTypeThatMegatronHasWithinItsBounds) {
  const TemporaryFolder folder;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kUint16,
                               TokenType::kInt32, TokenType::kInt64}) {
    Tokens expected;
    for (std::int64_t i = 0; i < 100; ++i) expected.push_back(i % 2 == 0 ? i : largest_token(type) - i);
    TokenFileWriter writer(folder.file("x"), TokenFormat::kMegatron, type);
    writer.add_document(expected);
    writer.finish();
    const TokenFile file = TokenFile::open(folder.file("x"));
    EXPECT_EQ(file.type(), type);
    // Every offset and length, so that whatever the vector instructions leave over is right too.
    for (std::int64_t begin = 0; begin <= 20; ++begin) {
      for (std::int64_t count = 0; count <= 100 - begin; ++count) {
        Tokens tokens(static_cast<std::size_t>(count));
        file.read(begin, tokens);
        ASSERT_EQ(tokens, Tokens(expected.begin() + begin, expected.begin() + begin + count)) << to_string(type);
      }
    }
  }
}

TEST(TokenFile, RefusesToReadBeyondItsEnd) {
  const TemporaryFolder folder;
  sample_index().write(folder.file("x.idx"));
  sample_data().write(folder.file("x.bin"));
  const TokenFile file = TokenFile::open(folder.file("x"));
  Tokens two(2);
  expect_parts(message_of<ConfigError>([&] { file.read(5, two); }), {"6 tokens", "2 from token 5"});
  EXPECT_THROW(file.read(-1, two), ConfigError);
  EXPECT_THROW(file.read(std::int64_t{1} << 62, two), ConfigError);
  EXPECT_NO_THROW(file.read(6, std::span<std::int64_t>()));
}

// The files are sparse: they take no space on the disk.
TEST(TokenFile, ReachesTokensBeyondTwoToThe31) {
  constexpr std::int64_t kPart = std::int64_t{1} << 30;  // tokens of a sequence
  const TemporaryFolder folder;
  RawFile()
      .text({"MMIDIDX\0\0", 9})
      .add(std::uint64_t{1})
      .add(std::uint8_t{8})
      .add(std::uint64_t{3})
      .add(std::uint64_t{4})
      .add(std::vector<std::int32_t>(3, static_cast<std::int32_t>(kPart)))
      .add(std::vector<std::int64_t>{0, 2 * kPart, 4 * kPart})
      .add(std::vector<std::int64_t>{0, 1, 2, 3})
      .write(folder.file("x.idx"));
  const int descriptor = ::open(folder.file("x.bin").c_str(), O_WRONLY | O_CREAT, 0600);
  const std::uint16_t last = 4242;
  ASSERT_EQ(pwrite(descriptor, &last, sizeof(last), 6 * kPart - 2), 2);
  close(descriptor);
  const TokenFile file = TokenFile::open(folder.file("x"));
  EXPECT_EQ(file.num_tokens(), 3 * kPart);
  EXPECT_EQ(file.document(2).begin, 2 * kPart);
  Tokens tokens(2);
  file.read(3 * kPart - 2, tokens);
  EXPECT_EQ(tokens, (Tokens{0, 4242}));
}

}  // namespace
}  // namespace tessera::testing
