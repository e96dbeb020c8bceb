#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"
#include "tokens/raw_file.h"

namespace tessera::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

/// Where the parts of sample_index() lie.
constexpr std::size_t kVersionAt = 9;
constexpr std::size_t kTypeAt = 17;
constexpr std::size_t kNumSequencesAt = 18;
constexpr std::size_t kNumDocumentsAt = 26;
constexpr std::size_t kLengthsAt = 34;
constexpr std::size_t kPointersAt = 50;
constexpr std::size_t kDocumentsAt = 82;

class MegatronFile : public ::testing::Test {
 protected:
  /// What opening a damaged pair says.
  std::string refusal(const RawFile& index, const RawFile& data = sample_data()) const {
    index.write(folder_.file("x.idx"));
    data.write(folder_.file("x.bin"));
    return message_of<ConfigError>([&] { TokenFile::open(folder_.file("x")); });
  }

  TemporaryFolder folder_;
};

TEST_F(MegatronFile, OpensByAnyOfItsNames) {
  sample_index().write(folder_.file("x.idx"));
  sample_data().write(folder_.file("x.bin"));
  for (const char* name : {"x", "x.idx", "x.bin"}) {
    const TokenFile file = TokenFile::open(folder_.file(name));
    EXPECT_EQ(file.format(), TokenFormat::kMegatron);
    EXPECT_EQ(file.type(), TokenType::kUint16);
    EXPECT_EQ(file.num_tokens(), 6);
    EXPECT_EQ(file.num_sequences(), 4);
    EXPECT_EQ(file.num_documents(), 2);
    EXPECT_EQ(file.path(), folder_.file("x.bin"));
  }
}

TEST_F(MegatronFile, ADocumentIsAllItsSequences) {
  sample_index().write(folder_.file("x.idx"));
  sample_data().write(folder_.file("x.bin"));
  const TokenFile file = TokenFile::open(folder_.file("x"));
  EXPECT_EQ(file.document(0).begin, 0);
  EXPECT_EQ(file.document(0).end, 3);
  EXPECT_EQ(file.document(1).begin, 3);
  EXPECT_EQ(file.document(1).end, 6);
  Tokens tokens(3);
  file.read(0, tokens);
  EXPECT_EQ(tokens, (Tokens{10, 11, 65535}));
  EXPECT_THROW(file.document(2), ConfigError);
  EXPECT_THROW(file.document(-1), ConfigError);
}

TEST_F(MegatronFile, TellsWhatIsWrongWithTheHeader) {
  expect_parts(refusal(sample_index().resize(20)), {folder_.file("x.idx"), "byte 20", "34 bytes", "end of the file"});
  expect_parts(refusal(sample_index().resize(0)), {"byte 0", "34 bytes"});
  expect_parts(refusal(sample_index().set(0, 'X')), {"byte 0", "MMIDIDX"});
  expect_parts(refusal(sample_index().set(8, 'X')), {"byte 0", "MMIDIDX"});
  expect_parts(refusal(sample_index().set(kVersionAt, std::uint64_t{2})), {"byte 9", "version 1", "found 2"});
  for (const int code : {0, 6, 7, 9, 255}) {
    expect_parts(refusal(sample_index().set(kTypeAt, static_cast<std::uint8_t>(code))),
                 {"byte 17", "integer type", "found " + std::to_string(code)});
  }
}

TEST_F(MegatronFile, RefusesCountsThatDoNotFitTheFile) {
  for (const std::uint64_t count : {std::uint64_t{5}, std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{1} << 62}) {
    expect_parts(refusal(sample_index().set(kNumSequencesAt, count)), {"byte 18"});
    expect_parts(refusal(sample_index().set(kNumDocumentsAt, count + 1)), {"byte "});
  }
  expect_parts(refusal(sample_index().set(kNumDocumentsAt, std::uint64_t{0})), {"byte 26", "at least one"});
  expect_parts(refusal(sample_index().add('x')), {"byte 18", "106 bytes", "found 107 bytes"});
  expect_parts(refusal(sample_index().add(std::uint32_t{0})), {"byte 106", "multimodal"});
}

TEST_F(MegatronFile, RefusesSequencesThatAreNotWhereTheyShouldBe) {
  expect_parts(refusal(sample_index().set(kLengthsAt, -1)), {"byte 34", "0 or more", "found -1"});
  expect_parts(refusal(sample_index().set(kPointersAt, std::int64_t{2})), {"byte 50", "sequence 0 at byte 0"});
  expect_parts(refusal(sample_index().set(kPointersAt + 16, std::int64_t{-6})), {"byte 66", "sequence 2 at byte 6"});
  expect_parts(refusal(sample_index().set(kLengthsAt + 12, 2)), {folder_.file("x.bin"), "byte 12", "end at byte 14"});
  expect_parts(refusal(sample_index(), sample_data().add('x')), {folder_.file("x.bin"), "byte 12", "1 bytes more"});
  expect_parts(refusal(sample_index(), sample_data().resize(11)), {folder_.file("x.bin"), "byte 11"});
}

TEST_F(MegatronFile, RefusesDocumentsThatAreNoStretchesOfSequences) {
  expect_parts(refusal(sample_index().set(kDocumentsAt, std::int64_t{1})), {"byte 82", "sequence 0", "found 1"});
  expect_parts(refusal(sample_index().set(kDocumentsAt + 8, std::int64_t{5})), {"byte 90", "from 0 to 4", "found 5"});
  expect_parts(refusal(sample_index().set(kDocumentsAt + 8, std::int64_t{-1})), {"byte 90", "found -1"});
  expect_parts(refusal(sample_index().set(kDocumentsAt + 16, std::int64_t{1})), {"byte 98", "from 2 to 4", "found 1"});
  expect_parts(refusal(sample_index().set(kDocumentsAt + 16, std::int64_t{3})), {"byte 98", "last of 4", "found 3"});
}

TEST_F(MegatronFile, SaysWhichHalfOfThePairIsMissing) {
  sample_index().write(folder_.file("only.idx"));
  expect_parts(message_of<StorageError>([&] { TokenFile::open(folder_.file("only")); }), {"only.bin", "No such file"});
  sample_data().write(folder_.file("alone.bin"));
  expect_parts(message_of<ConfigError>([&] { TokenFile::open(folder_.file("alone.bin")); }), {"alone.bin"});
  expect_parts(message_of<StorageError>([&] { TokenFile::open(folder_.file("none")); }), {"none", "No such file"});
}

}  // namespace
}  // namespace tessera::testing
