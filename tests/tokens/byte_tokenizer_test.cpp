#include <tessera/core/error.h>
#include <tessera/tokens/tokenizer.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

TEST(ByteTokenizer, GivesEveryByteBack) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const ByteTokenizer tokenizer;
  std::vector<std::int64_t> tokens{7};
  tokenizer.encode(text, tokens);
  ASSERT_EQ(tokens.size(), 257U) << "tokens are appended";
  EXPECT_EQ(tokens[1], 0);
  EXPECT_EQ(tokens[256], 255);
  EXPECT_EQ(tokenizer.decode(std::span(tokens).subspan(1)), text);
}

TEST(ByteTokenizer, EndsADocumentWithATokenThatHasNoText) {
  EXPECT_EQ(ByteTokenizer().decode(std::vector<std::int64_t>{'a', 256, 'b'}), "ab");
  EXPECT_EQ(ByteTokenizer().vocabulary_size(), 257);
  expect_parts(message_of<ConfigError>([] { ByteTokenizer().decode(std::vector<std::int64_t>{257}); }), {"257"});
  EXPECT_THROW(ByteTokenizer().decode(std::vector<std::int64_t>{-1}), ConfigError);
}

}  // namespace
}  // namespace tessera::testing
