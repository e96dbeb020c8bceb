#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"
#include "tokens/raw_file.h"

namespace tessera::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr std::int32_t kGpt2 = 20240520;
constexpr std::int32_t kLlama3 = 20240801;

class LlmcFile : public ::testing::Test {
 protected:
  TokenFile open(const RawFile& file) const {
    file.write(folder_.file("x.bin"));
    return TokenFile::open(folder_.file("x.bin"));
  }
  std::string refusal(const RawFile& file) const {
    return message_of<ConfigError>([&] { open(file); });
  }

  TemporaryFolder folder_;
};

TEST_F(LlmcFile, HoldsTokensOf16BitsForGpt2) {
  const TokenFile file = open(llmc_file(kGpt2, 1, 3).add(std::vector<std::uint16_t>{50256, 7, 65535}));
  EXPECT_EQ(file.format(), TokenFormat::kLlmcGpt2);
  EXPECT_EQ(file.type(), TokenType::kUint16);
  Tokens tokens(3);
  file.read(0, tokens);
  EXPECT_EQ(tokens, (Tokens{50256, 7, 65535}));
}

TEST_F(LlmcFile, HoldsTokensOf32BitsForLlama3) {
  const TokenFile file = open(llmc_file(kLlama3, 7, 2).add(std::vector<std::uint32_t>{128000, 4294967295}));
  EXPECT_EQ(file.format(), TokenFormat::kLlmcLlama3);
  Tokens tokens(2);
  file.read(0, tokens);
  EXPECT_EQ(tokens, (Tokens{128000, 4294967295}));
}

TEST_F(LlmcFile, DoesNotTellDocuments) {
  const TokenFile file = open(llmc_file(kGpt2, 1, 1).add(std::uint16_t{1}));
  EXPECT_FALSE(file.has_documents());
  expect_parts(message_of<ConfigError>([&] { file.document(0); }), {"do not tell where documents begin"});
}

TEST_F(LlmcFile, IsKnownByItsMagicAlsoBesideAnIndex) {
  sample_index().write(folder_.file("x.idx"));
  EXPECT_EQ(open(llmc_file(kGpt2, 1, 0)).format(), TokenFormat::kLlmcGpt2);
}

TEST_F(LlmcFile, TellsWhatIsWrong) {
  expect_parts(refusal(RawFile().text("text")), {folder_.file("x.bin"), "byte 4", "1024 bytes"});
  expect_parts(refusal(llmc_file(20240522, 1, 0)), {"byte 0", "20240520", "found 20240522"});
  expect_parts(refusal(llmc_file(kGpt2, 7, 0)), {"byte 4", "version 1", "found 7"});
  expect_parts(refusal(llmc_file(kLlama3, 1, 0)), {"byte 4", "version 7", "found 1"});
  expect_parts(refusal(llmc_file(kGpt2, 1, -1)), {"byte 8", "found -1"});
  expect_parts(refusal(llmc_file(kGpt2, 1, 2).add(std::uint16_t{0})), {"byte 8", "1028 bytes", "found 1026 bytes"});
  expect_parts(refusal(llmc_file(kGpt2, 1, 0).add('x')), {"byte 8", "1024 bytes", "found 1025 bytes"});
  expect_parts(refusal(llmc_file(kGpt2, 1, 0).set(1020, 9)), {"byte 1020", "unused", "found 9"});
}

TEST_F(LlmcFile, RefusesWhatIsNoFile) {
  expect_parts(message_of<StorageError>([&] { TokenFile::open(folder_.path()); }), {"no regular file"});
}

}  // namespace
}  // namespace tessera::testing
