#include <tessera/core/error.h>
#include <tessera/tokens/pack.h>
#include <tessera/tokens/token_file.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

/// A tokenizer of somebody else's: it has no end of a document, many tokens, and dislikes 'x'.
class Picky final : public Tokenizer {
 public:
  std::string name() const override { return "picky"; }
  std::int64_t vocabulary_size() const override { return 100'000; }
  std::optional<std::int64_t> end_of_document() const override { return std::nullopt; }
  void encode(std::string_view text, Tokens& tokens) const override {
    if (text.find('x') != std::string_view::npos) throw ConfigError("an x");
    tokens.push_back(99'999);
  }
  std::string decode(std::span<const std::int64_t> /*tokens*/) const override { return ""; }
};

class Pack : public ::testing::Test {
 protected:
  Pack() {
    folder_.write("a.txt", "one\n\ntwo\n", 0600);
    folder_.write("b.txt", "three\n", 0600);
    folder_.write("bad.txt", "fine\nx\n", 0600);
  }
  PackSummary run(const PackOptions& options) const {
    return pack({folder_.file("a.txt"), folder_.file("b.txt")}, folder_.file("out"), ByteTokenizer(), options);
  }
  std::string text_of(std::int64_t document) const {
    const TokenFile file = TokenFile::open(folder_.file("out"));
    const auto range = file.document(document);
    Tokens tokens(static_cast<std::size_t>(range.end - range.begin));
    file.read(range.begin, tokens);
    return ByteTokenizer().decode(tokens);
  }

  TemporaryFolder folder_;
};

TEST_F(Pack, MakesADocumentOfEachFile) {
  const PackSummary summary = run(PackOptions());
  EXPECT_EQ(summary.num_files, 2);
  EXPECT_EQ(summary.num_documents, 2);
  EXPECT_EQ(summary.num_tokens, 15);
  EXPECT_EQ(summary.num_text_bytes, 15);
  EXPECT_EQ(text_of(0), "one\n\ntwo\n");
  EXPECT_EQ(text_of(1), "three\n");
  EXPECT_EQ(TokenFile::open(folder_.file("out")).type(), TokenType::kUint16);
}

TEST_F(Pack, MakesADocumentOfEachLineAndCountsTheEmptyOnes) {
  const PackSummary summary = run(PackOptions().documents("line").type("uint8"));
  EXPECT_EQ(summary.num_documents, 3);
  EXPECT_EQ(summary.num_empty, 1);
  EXPECT_EQ(text_of(1), "two");
  EXPECT_EQ(TokenFile::open(folder_.file("out")).type(), TokenType::kUint8);
}

TEST_F(Pack, EndsDocumentsWhenAskedTo) {
  run(PackOptions().documents("block").end_of_document(true));
  const TokenFile file = TokenFile::open(folder_.file("out"));
  Tokens tokens(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, tokens);
  EXPECT_EQ(tokens, (Tokens{'o', 'n', 'e', 256, 't', 'w', 'o', 256, 't', 'h', 'r', 'e', 'e', 256}));
}

TEST_F(Pack, WritesLlmcsFormat) {
  const PackSummary summary = run(PackOptions().format("llmc-llama3"));
  EXPECT_EQ(TokenFile::open(folder_.file("out")).format(), TokenFormat::kLlmcLlama3);
  EXPECT_EQ(summary.written, std::vector<std::filesystem::path>{folder_.file("out")});
}

TEST_F(Pack, ReplacesFilesOnlyWhenAskedTo) {
  run(PackOptions());
  expect_parts(message_of<ConfigError>([&] { run(PackOptions()); }), {"out.bin", "exists", "overwrite"});
  EXPECT_NO_THROW(run(PackOptions().overwrite(true)));
}

TEST_F(Pack, RefusesOptionsThatCannotBeMet) {
  const std::vector<std::filesystem::path> inputs{folder_.file("b.txt")};
  expect_parts(message_of<ConfigError>([&] {
                 pack(inputs, folder_.file("out"), Picky(),
                      PackOptions().format("llmc-gpt2").type("int32").end_of_document(true));
               }),
               {"one type of tokens", "picky has no token that ends a document"});
  EXPECT_THROW(run(PackOptions().documents("page")), ConfigError);
  expect_parts(
      message_of<ConfigError>([&] { pack(inputs, folder_.file("out"), Picky(), PackOptions().format("llmc-gpt2")); }),
      {"b.txt, document 0", "99999", "uint16"});
}

TEST_F(Pack, NamesTheTextThatTheTokenizerRefusesAndWritesNothing) {
  expect_parts(message_of<ConfigError>([&] {
                 pack({folder_.file("bad.txt")}, folder_.file("out"), Picky(), PackOptions().documents("line"));
               }),
               {"bad.txt, document 1", "an x"});
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out.bin")));
  EXPECT_THROW(pack({folder_.file("none.txt")}, folder_.file("out"), Picky(), PackOptions()), StorageError);
}

TEST_F(Pack, ChoosesATypeThatHoldsTheVocabulary) {
  pack({folder_.file("b.txt")}, folder_.file("out"), Picky(), PackOptions());
  EXPECT_EQ(TokenFile::open(folder_.file("out")).type(), TokenType::kInt32);
}

}  // namespace
}  // namespace tessera::testing
