#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/tessera_command.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

class DataCommand : public ::testing::Test {
 protected:
  DataCommand() { folder_.write("text", "first line\n\nsecond\n", 0600); }
  std::string file(const std::string& name) const { return folder_.file(name); }

  TemporaryFolder folder_;
};

TEST_F(DataCommand, PacksTextAndShowsIt) {
  const TesseraCommand packing({"data", "pack", file("out"), file("text"), "--documents", "line"});
  EXPECT_EQ(packing.exit_code(), 0);
  EXPECT_EQ(packing.output(), "1 file, 2 documents, 16 tokens of 16 bytes (bytes)\nleft out: 1 empty document\nwrote " +
                                  file("out.bin") + "\nwrote " + file("out.idx") + "\n");
  const TesseraCommand facts({"data", "show", file("out")});
  EXPECT_EQ(facts.exit_code(), 0);
  expect_parts(facts.output(), {"megatron", "uint16", "documents       2", "largest token   116"});
  EXPECT_EQ(TesseraCommand({"data", "show", file("out"), "--document", "1", "--tokenizer", "bytes"}).output(),
            "second\n");
  EXPECT_EQ(TesseraCommand({"data", "show", file("out"), "--begin", "6", "--count", "3"}).output(), "108 105 110\n");
  EXPECT_EQ(TesseraCommand({"data", "show", file("out"), "--begin", "15", "--count", "30"}).output(), "100\n");
}

TEST_F(DataCommand, ShowsFactsAsJson) {
  EXPECT_EQ(TesseraCommand({"data", "pack", file("x.bin"), file("text"), "--format", "llmc-gpt2"}).exit_code(), 0);
  const auto facts = nlohmann::json::parse(TesseraCommand({"data", "show", "--json", file("x.bin")}).output());
  EXPECT_EQ(facts["format"], "llmc-gpt2");
  EXPECT_EQ(facts["tokens"], 19);
  EXPECT_FALSE(facts.contains("documents"));
}

TEST_F(DataCommand, SaysWhatItCannotDo) {
  folder_.write("x.idx", "MMIDIDX", 0600);
  folder_.write("x.bin", "", 0600);
  const TesseraCommand malformed({"data", "show", file("x")});
  EXPECT_EQ(malformed.exit_code(), 2);
  expect_parts(malformed.output(), {"x.idx, byte 7"});
  EXPECT_EQ(TesseraCommand({"data", "show", file("none")}).exit_code(), 4);
  EXPECT_EQ(TesseraCommand({"data"}).exit_code(), 2);
  EXPECT_EQ(TesseraCommand({"data", "pack"}).exit_code(), 2);
  EXPECT_EQ(TesseraCommand({"data", "pack", file("out")}).exit_code(), 2);
  const TesseraCommand choice({"data", "pack", file("out"), file("text"), "--documents", "page"});
  EXPECT_EQ(choice.exit_code(), 2);
  expect_parts(choice.output(), {"documents", "block"});
  const TesseraCommand model({"data", "pack", file("out"), file("text"), "--model", "m"});
  EXPECT_EQ(model.exit_code(), 2);
  expect_parts(model.output(), {"sentencepiece"});
  EXPECT_EQ(TesseraCommand({"data", "pack", file("out"), file("text"), "--tokenizer", "sentencepiece"}).exit_code(), 2);
  EXPECT_FALSE(std::filesystem::exists(file("out.bin")));
}

TEST_F(DataCommand, TakesItsOptionsFromAFile) {
  folder_.write("pack.toml", "format = \"llmc-gpt2\"\nend_of_document = true\n", 0600);
  const TesseraCommand packing({"data", "pack", file("out"), file("text"), "--config", file("pack.toml")});
  EXPECT_EQ(packing.exit_code(), 0) << packing.output();
  EXPECT_EQ(TesseraCommand({"data", "show", file("out"), "--begin", "18", "--count", "9"}).output(), "10 256\n");
}

}  // namespace
}  // namespace tessera::testing
