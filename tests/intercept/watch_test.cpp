#include <tessera/intercept/watch.h>

#include <torch/torch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::intercept {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Recorder : Listener {
  void on_use(const Use& use) override {
    const std::lock_guard lock(mutex);
    uses.emplace_back(use.operator_name());
    if (use.writes()) writes.emplace_back(use.operator_name());
    if (computes) at::relu(at::ones({2}));
    if (throws) throw std::runtime_error("never seen");
  }
  void on_operator(std::string_view name) override {
    const std::lock_guard lock(mutex);
    operators.emplace_back(name);
  }

  std::mutex mutex;
  std::vector<std::string> uses;
  std::vector<std::string> writes;  // among the uses
  std::vector<std::string> operators;
  bool throws = false;
  bool computes = false;
};

TEST(Watch, HearsOfOperatorsThatTakeATensor) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3, 3});
  const at::Tensor other = at::ones({3, 3});
  const Watch watch({weight}, recorder);
  at::matmul(other, other);
  EXPECT_THAT(recorder->uses, IsEmpty());
  at::matmul(other, weight);
  EXPECT_THAT(recorder->uses, Contains("aten::matmul"));
}

TEST(Watch, HearsOfViewsAndOfListsOfTensors) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({4});
  const at::Tensor half = weight.narrow(0, 0, 2);
  const Watch watch({weight}, recorder);
  at::cat({at::zeros({2}), half});
  EXPECT_THAT(recorder->uses, Contains("aten::cat"));
}

TEST(Watch, HearsOfListsWithGaps) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor data = at::ones({2, 3});
  const at::Tensor weight = at::zeros({1}, at::kLong);
  const Watch watch({weight}, recorder);
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(std::nullopt);
  indices.push_back(weight);
  at::index(data, indices);
  EXPECT_THAT(recorder->uses, Contains("aten::index"));
}

TEST(Watch, HearsOfATensorThatWasGivenOtherMemory) {
  const auto recorder = std::make_shared<Recorder>();
  at::Tensor weight = at::ones({4});
  const at::Tensor former = weight.detach();
  const Watch watch({weight}, recorder);
  weight.set_data(at::zeros({4}));
  recorder->uses.clear();
  at::neg(former);
  EXPECT_THAT(recorder->uses, IsEmpty());
  at::neg(weight);
  EXPECT_THAT(recorder->uses, Contains("aten::neg"));
}

TEST(Watch, MayBeEndedByItsListener) {
  struct Once : Listener {
    void on_use(const Use& /*use*/) override {
      ++count;
      watch = Watch();
    }
    Watch watch;
    int count = 0;
  };
  const auto once = std::make_shared<Once>();
  const at::Tensor weight = at::ones({3});
  once->watch = Watch({weight}, once);
  at::add(weight, weight);  // takes it twice, but the second time nobody watches any more
  at::neg(weight);
  EXPECT_EQ(once->count, 1);
}

TEST(Watch, HearsOnceOfAViewOfMemoryThatSeveralOfItsTensorsShare) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor row = at::ones({6});
  at::Tensor first = at::empty({0}).set_(row.storage(), 0, {3});
  const at::Tensor second = at::empty({0}).set_(row.storage(), 3, {3});
  const Watch watch({row, first, second}, recorder);
  const at::Tensor view = at::empty({0}).set_(row.storage(), 1, {4});
  recorder->uses.clear();
  at::neg(view);
  EXPECT_EQ(recorder->uses.size(), 1U);
  first.set_data(at::ones({3}));
  recorder->uses.clear();
  at::neg(first);
  EXPECT_EQ(recorder->uses.size(), 1U) << "though it lies elsewhere";
  at::neg(view);
  EXPECT_EQ(recorder->uses.size(), 2U);
}

TEST(Watch, HearsOfModulesThatWereNotModified) {
  torch::nn::LSTM lstm(3, 4);
  torch::nn::MultiheadAttention attention(4, 2);
  const auto first = std::make_shared<Recorder>();
  const auto second = std::make_shared<Recorder>();
  const Watch of_lstm({lstm->parameters().back()}, first);
  const Watch of_attention({attention->parameters().back()}, second);
  const auto x = std::get<0>(lstm(at::ones({2, 1, 3})));
  EXPECT_FALSE(first->uses.empty());
  EXPECT_TRUE(second->uses.empty());
  attention(x, x, x);
  EXPECT_FALSE(second->uses.empty());
}

TEST(Watch, HearsOfBackward) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3, 3}).set_requires_grad(true);
  const at::Tensor loss = at::matmul(at::ones({3, 3}).set_requires_grad(true), weight).sum();
  const Watch watch({weight}, recorder);
  loss.backward();
  EXPECT_FALSE(recorder->uses.empty());
}

TEST(Watch, HearsNothingWhilePausedAndAfterItsEnd) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3});
  {
    Watch watch({weight}, recorder);
    watch.pause();
    at::relu(weight);
    EXPECT_THAT(recorder->uses, IsEmpty());
    watch.resume();
    at::relu(weight);
    EXPECT_FALSE(recorder->uses.empty());
    recorder->uses.clear();
  }
  at::relu(weight);
  EXPECT_THAT(recorder->uses, IsEmpty());
}

TEST(Watch, HearsEveryOperatorWhenAsked) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3});
  const Watch watch({weight}, recorder, Interest::kUsesAndEveryOperator);
  at::relu(at::ones({2}));
  EXPECT_THAT(recorder->uses, IsEmpty());
  EXPECT_THAT(recorder->operators, Contains("aten::relu"));
}

TEST(Watch, HearsOfWritesAlone) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3});
  const Watch watch({weight}, recorder, Interest::kWritesAndEnds);
  weight.sum();
  at::neg(weight);
  EXPECT_EQ(recorder->uses.size(), 0U);
  weight.add_(1);
  EXPECT_THAT(recorder->uses, Contains("aten::add_"));
  recorder->uses.clear();
  at::Tensor part = weight.narrow(0, 0, 2);
  at::add_out(part, at::ones({2}), at::ones({2}));
  EXPECT_THAT(recorder->uses, Contains("aten::add"));
  recorder->uses.clear();
  at::Tensor other = at::ones({3});
  other.copy_(weight);
  EXPECT_THAT(recorder->uses, IsEmpty());
}

TEST(Watch, HearsOfAViewThatAnotherWatchKnowsItself) {
  const auto recorder = std::make_shared<Recorder>();
  const auto other = std::make_shared<Recorder>();
  const at::Tensor row = at::ones({6});
  const at::Tensor part = at::empty({0}).set_(row.storage(), 2, {3});
  const Watch of_row({row}, recorder);
  const Watch of_part({part}, other);
  recorder->uses.clear();
  other->uses.clear();
  at::neg(part);
  EXPECT_EQ(recorder->uses.size(), 1U);
  EXPECT_EQ(other->uses.size(), 1U);
}

TEST(Watch, TellsWhichUsesWrite) {
  const auto recorder = std::make_shared<Recorder>();
  at::Tensor weight = at::ones({3});
  const Watch watch({weight}, recorder);
  for (int i = 0; i < 2; ++i) {  // what was learned the first time holds the second time
    weight.add(weight);          // an overload of the same name as the one below
    weight.sum();
    EXPECT_FALSE(weight.detach().requires_grad());  // its record has no schema
    EXPECT_THAT(recorder->writes, IsEmpty());
    at::add_out(weight, at::ones({3}), at::ones({3}));
    EXPECT_THAT(recorder->writes, ElementsAre("aten::add"));
    recorder->writes.clear();
    at::_foreach_mul_({at::ones({3}), weight}, 2);
    EXPECT_THAT(recorder->writes, Contains("aten::_foreach_mul_"));
    recorder->writes.clear();
  }
}

TEST(Watch, DoesNotHearItselfAndSurvivesWhatIsThrown) {
  const auto recorder = std::make_shared<Recorder>();
  const at::Tensor weight = at::ones({3});
  const Watch watch({weight}, recorder, Interest::kUsesAndEveryOperator);
  recorder->computes = true;
  recorder->throws = true;
  const at::Tensor result = at::neg(weight);
  EXPECT_EQ(recorder->uses.size(), 1U);
  EXPECT_EQ(recorder->operators.size(), 1U);
  EXPECT_EQ(result[0].item<float>(), -1);
}

TEST(Watch, ServesManyThreads) {
  std::vector<std::thread> threads;
  std::vector<int> heard(4, 0);
  for (int& count : heard) {
    threads.emplace_back([&count] {
      const at::Tensor weight = at::ones({3});
      for (int round = 0; round < 50; ++round) {
        const auto recorder = std::make_shared<Recorder>();
        Watch watch({weight}, recorder);
        at::neg(weight);
        watch.pause();
        at::neg(weight);
        count += static_cast<int>(recorder->uses.size());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(heard, ::testing::Each(50));
}

}  // namespace
}  // namespace tessera::intercept
