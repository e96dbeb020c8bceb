#include <tessera/train/torch_data.h>

#include <torch/data.h>
#include <torch/serialize.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "support/error_message.h"
#include "train/counting_files.h"

namespace tessera::testing {
namespace {

namespace data = torch::data;

constexpr std::int64_t kLength = 4;

class TorchData : public ::testing::Test {
 protected:
  TorchData()
      : dataset_({counting_file(folder_, "x", {81})}, TokenDatasetOptions().sequence_length(kLength)),
        sampler_(dataset_.size(), 1, 2, SamplerOptions().seed(7).global_batch(6)) {}

  auto loader_of(const TorchSampler& sampler, std::size_t batch_size = 3, std::size_t workers = 0) const {
    return data::make_data_loader(TorchTokenDataset(dataset_).map(data::transforms::Stack<>()), sampler,
                                  data::DataLoaderOptions().batch_size(batch_size).workers(workers));
  }
  template <class Loader>
  static std::vector<at::Tensor> inputs_of(Loader& loader) {
    std::vector<at::Tensor> inputs;
    for (auto& batch : loader) {
      EXPECT_TRUE(at::equal(batch.target, batch.data + 1));
      inputs.push_back(batch.data);
    }
    return inputs;
  }
  std::vector<at::Tensor> expected(Sampler& sampler) const {
    std::vector<at::Tensor> inputs;
    while (const auto batch = sampler.next()) inputs.push_back(dataset_.batch(batch->samples).input);
    return inputs;
  }
  static void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }

  TemporaryFolder folder_;
  TokenDataset dataset_;
  Sampler sampler_;
};

TEST_F(TorchData, ItsLoaderFollowsOurSamplerThroughEpochs) {
  const auto loader = loader_of(TorchSampler(sampler_));
  for (int epoch = 0; epoch < 2; ++epoch) expect_same(inputs_of(*loader), expected(sampler_));
}

TEST_F(TorchData, ItsWorkersMayBeSeveral) {
  const auto loader = loader_of(TorchSampler(sampler_), 3, 2);
  expect_same(inputs_of(*loader), expected(sampler_));
  expect_same(inputs_of(*loader), expected(sampler_));
}

TEST_F(TorchData, GoesOnInTheMiddleOfAnEpoch) {
  Sampler resumed = sampler_;
  resumed.restore(sampler_.state().advanced(6));
  sampler_.next();
  const auto loader = loader_of(TorchSampler(resumed));
  expect_same(inputs_of(*loader), expected(sampler_));
}

TEST_F(TorchData, ALoopThatWasLeftIsFollowedByTheNextEpoch) {
  const auto loader = loader_of(TorchSampler(sampler_));
  for (auto& batch : *loader) {
    EXPECT_EQ(batch.data.size(0), 3);
    break;
  }
  while (sampler_.next()) {
  }
  expect_same(inputs_of(*loader), expected(sampler_));
}

TEST_F(TorchData, TheSamplerSurvivesAnArchive) {
  sampler_.next();
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  TorchSampler(sampler_).save(out);
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  TorchSampler loaded(Sampler(dataset_.size(), 1, 2, SamplerOptions().seed(7).global_batch(6)));
  loaded.load(in);
  const auto loader = loader_of(loaded);
  expect_same(inputs_of(*loader), expected(sampler_));
}

TEST_F(TorchData, RefusesABatchSizeThatIsNotThePartOfTheRank) {
  TorchSampler sampler(sampler_);
  expect_parts(message_of<ConfigError>([&] { sampler.next(4); }), {"is 4", "global batch of 6 is 3"});
  EXPECT_THROW(sampler.reset(21), ConfigError);
  EXPECT_NO_THROW(sampler.reset(20));
}

TEST_F(TorchData, RefusesAnEmptyPart) {
  TorchSampler sampler(Sampler(7, 1, 2, SamplerOptions().global_batch(6).last_batch("keep")));
  sampler.next(3);
  expect_parts(message_of<ConfigError>([&] { sampler.next(3); }), {"torch::data cannot express"});
}

}  // namespace
}  // namespace tessera::testing
