#include <tessera/core/error.h>
#include <tessera/tokens/token_writer.h>

#include <gtest/gtest.h>

#include <set>

#include "support/error_message.h"
#include "support/temporary_folder.h"
#include "tokens/raw_file.h"

namespace tessera::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

std::set<std::string> names_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.insert(entry.path().filename());
  return names;
}

TEST(TokenWriter, WritesMegatronsFormatByteForByte) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder.file("x.bin"), TokenFormat::kMegatron, TokenType::kInt32);
  writer.add_document(Tokens{1, 2, 3});
  writer.add_document(Tokens{70000});
  writer.finish();
  EXPECT_EQ(text_of_file(folder.file("x.bin")), RawFile().add(std::vector<std::int32_t>{1, 2, 3, 70000}).bytes());
  EXPECT_EQ(text_of_file(folder.file("x.idx")), RawFile()
                                                    .text({"MMIDIDX\0\0", 9})
                                                    .add(std::uint64_t{1})
                                                    .add(std::uint8_t{4})
                                                    .add(std::uint64_t{2})
                                                    .add(std::uint64_t{3})
                                                    .add(std::vector<std::int32_t>{3, 1})
                                                    .add(std::vector<std::int64_t>{0, 12})
                                                    .add(std::vector<std::int64_t>{0, 1, 2})
                                                    .bytes());
}

TEST(TokenWriter, WritesLlmcsFormatsByteForByte) {
  const TemporaryFolder folder;
  TokenFileWriter gpt2(folder.file("gpt2.bin"), TokenFormat::kLlmcGpt2, TokenType::kUint16);
  gpt2.add_document(Tokens{50256, 1});
  gpt2.add_document(Tokens{50256});
  gpt2.finish();
  EXPECT_EQ(text_of_file(folder.file("gpt2.bin")),
            llmc_file(20240520, 1, 3).add(std::vector<std::uint16_t>{50256, 1, 50256}).bytes());
  TokenFileWriter llama(folder.file("llama.bin"), TokenFormat::kLlmcLlama3, TokenType::kUint32);
  llama.add_document(Tokens{128000});
  llama.finish();
  EXPECT_EQ(text_of_file(folder.file("llama.bin")), llmc_file(20240801, 7, 1).add(std::uint32_t{128000}).bytes());
}

TEST(TokenWriter, ShowsNothingBeforeItIsFinishedAndLeavesNothingWhenItIsNot) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder.file("x"), TokenFormat::kMegatron, TokenType::kUint16);
    writer.add_document(Tokens(1000, 7));
    EXPECT_FALSE(std::filesystem::exists(folder.file("x.bin")));
    EXPECT_FALSE(std::filesystem::exists(folder.file("x.idx")));
  }
  EXPECT_EQ(names_in(folder), std::set<std::string>{});
}

TEST(TokenWriter, ReplacesWhatWasThere) {
  const TemporaryFolder folder;
  for (const std::int64_t token : {1, 2}) {
    TokenFileWriter writer(folder.file("x"), TokenFormat::kMegatron, TokenType::kUint16);
    writer.add_document(Tokens(static_cast<std::size_t>(token), token));
    if (token == 2) {
      EXPECT_EQ(TokenFile::open(folder.file("x")).num_tokens(), 1) << "the former pair stays until the end";
    }
    writer.finish();
    EXPECT_EQ(TokenFile::open(folder.file("x")).num_tokens(), token);
  }
  EXPECT_EQ(names_in(folder), (std::set<std::string>{"x.bin", "x.idx"}));
}

TEST(TokenWriter, WritesMoreThanItsBufferHolds) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder.file("x"), TokenFormat::kMegatron, TokenType::kUint16);
  std::int64_t next = 0;
  for (const std::size_t length : {1U, 300'000U, 700'000U, 2'000'000U, 5U}) {
    Tokens tokens(length);
    for (std::int64_t& token : tokens) token = next++ % 65'521;
    writer.add_document(tokens);
  }
  writer.finish();
  const TokenFile file = TokenFile::open(folder.file("x"));
  Tokens all(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, all);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::int64_t>(i) % 65'521) << i;
}

TEST(TokenWriter, RefusesTokensThatDoNotFit) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder.file("x"), TokenFormat::kLlmcGpt2, TokenType::kUint16);
  expect_parts(message_of<ConfigError>([&] { writer.add_document(Tokens{1, 65536}); }),
               {"token 1 of document 0", "65536", "uint16"});
  expect_parts(message_of<ConfigError>([&] { writer.add_document(Tokens{-1}); }), {"-1"});
  EXPECT_EQ(writer.num_tokens(), 0);
}

TEST(TokenWriter, RefusesTypesThatTheFormatDoesNotHave) {
  const TemporaryFolder folder;
  expect_parts(
      message_of<ConfigError>([&] { TokenFileWriter(folder.file("x"), TokenFormat::kMegatron, TokenType::kUint32); }),
      {"no code for uint32"});
  EXPECT_THROW(TokenFileWriter(folder.file("x"), TokenFormat::kLlmcGpt2, TokenType::kInt32), ConfigError);
  EXPECT_THROW(TokenFileWriter(folder.file("none/x"), TokenFormat::kLlmcGpt2, TokenType::kUint16), StorageError);
  EXPECT_EQ(names_in(folder), std::set<std::string>{});
}

TEST(TokenWriter, MakesAnEmptyFileThatOpens) {
  const TemporaryFolder folder;
  TokenFileWriter(folder.file("x"), TokenFormat::kMegatron, TokenType::kUint16).finish();
  const TokenFile file = TokenFile::open(folder.file("x"));
  EXPECT_EQ(file.num_tokens(), 0);
  EXPECT_EQ(file.num_documents(), 0);
}

}  // namespace
}  // namespace tessera::testing
