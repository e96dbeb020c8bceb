#include <tessera/core/error.h>
#include <tessera/train/token_dataset.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/error_message.h"
#include "train/counting_files.h"

namespace tessera::testing {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr std::int64_t kPad = TokenDataset::kPadding;

at::Tensor longs(const std::vector<std::int64_t>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kLong).view(shape);
}

TEST(TokenDataset, GivesWindowsThatOverlapByOneToken) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "x", {6, 5})}, TokenDatasetOptions().sequence_length(4));
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.num_tokens(), 11);
  EXPECT_EQ(data.num_tokens_left_out(), 2);
  const at::Tensor windows = data.windows(Indices{1, 0});
  EXPECT_EQ(windows.scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(windows, longs({4, 5, 6, 7, 8, 0, 1, 2, 3, 4}, {2, 5})));
}

TEST(TokenDataset, PredictsTheNextToken) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "x", {9})}, TokenDatasetOptions().sequence_length(4));
  const TokenBatch batch = data.batch(Indices{0, 1});
  EXPECT_TRUE(at::equal(batch.input, longs({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4})));
  EXPECT_TRUE(at::equal(batch.target, longs({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4})));
  EXPECT_EQ(data.batch(Indices{}).input.sizes(), (std::vector<std::int64_t>{0, 4})) << "a rank without samples";
}

TEST(TokenDataset, KeepsDocumentsApartWithPadding) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "x", {3, 1, 0, 6})},
                          TokenDatasetOptions().sequence_length(4).documents("separate"));
  EXPECT_EQ(data.size(), 3);
  EXPECT_TRUE(at::equal(data.windows(Indices{0, 1, 2}),
                        longs({0, 1, 2, kPad, kPad, 4, 5, 6, 7, 8, 8, 9, kPad, kPad, kPad}, {3, 5})));
  const TokenBatch batch = data.batch(Indices{2});
  EXPECT_TRUE(at::equal(batch.input, longs({8, 9, 0, 0}, {1, 4}))) << "an embedding must find every input";
  EXPECT_TRUE(at::equal(batch.target, longs({9, kPad, kPad, kPad}, {1, 4})));
}

TEST(TokenDataset, JoinsFilesWithoutMixingThem) {
  const TemporaryFolder folder;
  const std::vector<TokenFile> files{counting_file(folder, "a", {6}, 0),
                                     counting_file(folder, "b.bin", {9}, 100, TokenFormat::kLlmcGpt2),
                                     counting_file(folder, "c", {5, 3}, 200)};
  const TokenDataset joined(files, TokenDatasetOptions().sequence_length(4));
  EXPECT_EQ(joined.size(), 1 + 2 + 1);
  EXPECT_TRUE(at::equal(joined.windows(Indices{2, 3}).select(1, 0), longs({104, 200}, {2})));
  const TokenDataset separate({files[0], files[2]}, TokenDatasetOptions().sequence_length(4).documents("separate"));
  EXPECT_EQ(separate.size(), 2 + 1 + 1);
  EXPECT_TRUE(at::equal(separate.windows(Indices{1, 2, 3}).select(1, 0), longs({4, 200, 205}, {3})));
}

TEST(TokenDataset, RefusesWhatItCannotGive) {
  const TemporaryFolder folder;
  const TokenFile file = counting_file(folder, "x", {5});
  expect_parts(message_of<ConfigError>([&] { TokenDataset({file}, TokenDatasetOptions().sequence_length(5)); }),
               {"5 tokens", "window of 6", "lower sequence_length"});
  expect_parts(message_of<ConfigError>([&] { TokenDataset({file}, TokenDatasetOptions().sequence_length(0)); }),
               {"sequence_length is 0"});
  const TokenFile llmc = counting_file(folder, "y.bin", {50}, 0, TokenFormat::kLlmcGpt2);
  expect_parts(message_of<ConfigError>([&] { TokenDataset({llmc}, TokenDatasetOptions().documents("separate")); }),
               {"y.bin", "where documents begin"});
  EXPECT_THROW(TokenDataset({file}, TokenDatasetOptions().documents("some")), ConfigError);
  EXPECT_THROW(TokenDataset(std::vector<TokenFile>{}), ConfigError);
  const TokenDataset data({file}, TokenDatasetOptions().sequence_length(2));
  expect_parts(message_of<ConfigError>([&] { data.windows(Indices{2}); }), {"no window 2", "has 2"});
  EXPECT_THROW(data.batch(Indices{-1}), ConfigError);
}

}  // namespace
}  // namespace tessera::testing
