#include <tessera/tokens/token_file.h>

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "launch/tessera_command.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

constexpr int kVocabulary = 30;

class SentencePiece : public ::testing::Test {
 protected:
  SentencePiece() {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += "tile " + std::to_string(i % 7) + " of the mosaic lies beside tile " + std::to_string(i % 5) + "\n";
    }
    folder_.write("text", text, 0600);
    const auto status = sentencepiece::SentencePieceTrainer::Train({{"input", file("text")},
                                                                    {"model_prefix", file("m")},
                                                                    {"vocab_size", std::to_string(kVocabulary)},
                                                                    {"minloglevel", "2"},
                                                                    {"num_threads", "1"}});
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }
  std::string file(const std::string& name) const { return folder_.file(name); }
  TesseraCommand pack(const std::string& text, const std::string& model) const {
    return TesseraCommand({"data", "pack", file("out"), file(text), "--tokenizer", "sentencepiece", "--model",
                           file(model), "--documents", "line", "--end-of-document", "true"});
  }

  TemporaryFolder folder_;
};

TEST_F(SentencePiece, PacksWhatTheLibraryItselfEncodes) {
  const TesseraCommand packing = pack("text", "m.model");
  ASSERT_EQ(packing.exit_code(), 0) << packing.output();
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(file("m.model")).ok());
  std::vector<int> expected;
  ASSERT_TRUE(processor.Encode("tile 3 of the mosaic lies beside tile 3", &expected).ok());
  expected.push_back(processor.eos_id());
  const TokenFile packed = TokenFile::open(file("out"));
  EXPECT_EQ(packed.num_documents(), 200);
  const auto range = packed.document(3);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(range.end - range.begin));
  packed.read(range.begin, tokens);
  EXPECT_EQ(tokens, std::vector<std::int64_t>(expected.begin(), expected.end()));
}

TEST_F(SentencePiece, ShowsTheTextAgain) {
  ASSERT_EQ(pack("text", "m.model").exit_code(), 0);
  EXPECT_EQ(TesseraCommand({"data", "show", file("out"), "--document", "3", "--tokenizer", "sentencepiece", "--model",
                            file("m.model")})
                .output(),
            "tile 3 of the mosaic lies beside tile 3\n");
  const TesseraCommand bytes({"data", "show", file("out"), "--document", "3", "--tokenizer", "bytes"});
  EXPECT_NE(bytes.output(), "tile 3 of the mosaic lies beside tile 3\n");
}

TEST_F(SentencePiece, RefusesWhatIsNoModel) {
  const TesseraCommand text = pack("text", "text");
  EXPECT_EQ(text.exit_code(), 2) << text.output();
  expect_parts(text.output(), {file("text"), "SentencePiece"});
  EXPECT_EQ(pack("text", "none").exit_code(), 2);
}

}  // namespace
}  // namespace tessera::testing
