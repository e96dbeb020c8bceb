#include <tessera/core/error.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/memory_count.h>

#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "support/error_message.h"

namespace tessera {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Make = std::function<ModulePtr()>;
using ::testing::HasSubstr;

/// The same model, built whole and built deferred; both leave the generator in the same state.
void expect_same_values(const Make& make) {
  torch::manual_seed(11);
  const auto whole = make();
  const at::Tensor after_whole = torch::rand({3});
  torch::manual_seed(11);
  const auto deferred = [&] {
    const DeferredInit no_bytes;
    return make();
  }();
  EXPECT_TRUE(at::equal(torch::rand({3}), after_whole)) << "the generator goes on elsewhere";
  bool any = false;
  for (const auto& entry : deferred->named_parameters()) {
    any = any || is_deferred(entry.value());
    materialize(entry.value());
    EXPECT_FALSE(is_deferred(entry.value()));
    EXPECT_TRUE(at::equal(entry.value(), whole->named_parameters()[entry.key()])) << entry.key();
    EXPECT_TRUE(entry.value().requires_grad());
  }
  for (const auto& entry : deferred->named_buffers()) {
    materialize(entry.value());
    EXPECT_TRUE(at::equal(entry.value(), whole->named_buffers()[entry.key()])) << entry.key();
  }
  EXPECT_TRUE(any) << "nothing was deferred";
}

TEST(DeferredInit, GivesLayersTheValuesThatTheyWouldHave) {
  namespace nn = torch::nn;
  expect_same_values([]() -> ModulePtr {
    nn::Sequential model;
    model->push_back(nn::Linear(65, 67));
    model->push_back(nn::Embedding(nn::EmbeddingOptions(100, 30).padding_idx(3)));
    model->push_back(nn::Conv2d(nn::Conv2dOptions(8, 33, 3)));
    model->push_back(nn::LSTM(nn::LSTMOptions(40, 50).num_layers(2)));
    return model.ptr();
  });
}

TEST(DeferredInit, KnowsModelsThatAreInitialisedTwice) {
  expect_same_values([] {
    return std::make_shared<torch::nn::TransformerImpl>(torch::nn::TransformerOptions(32, 2, 1, 1).dim_feedforward(64));
  });
}

struct Custom : torch::nn::Module {
  Custom() {
    scaled = register_parameter("scaled", torch::randn({40, 50}) * 0.02);
    half = register_parameter("half", torch::rand({64, 64}).to(torch::kBFloat16));
    copied = register_parameter("copied", scaled.detach().clone());
    orthogonal = register_parameter("orthogonal", torch::empty({48, 48}));
    torch::nn::init::orthogonal_(orthogonal);
    joined = register_parameter("joined", torch::cat({copied.detach(), scaled.detach().t().reshape({40, 50})}));
    mask = register_buffer("mask", torch::ones({80, 80}).tril());
    const torch::NoGradGuard no_grad;
    scaled.mul_(2);  // after it was copied
    scaled[3].fill_(7);
    half.narrow(0, 2, 3).zero_();
    if (orthogonal.norm().item<float>() > 1) orthogonal.div_(orthogonal.norm());
  }
  torch::Tensor scaled, half, copied, orthogonal, joined, mask;
};

TEST(DeferredInit, RemembersWhateverAConstructorDoes) {
  expect_same_values([] { return std::make_shared<Custom>(); });
}

TEST(DeferredInit, DrawsFromAGeneratorThatIsGiven) {
  const auto make = [](at::Generator generator) {
    const at::Tensor made = torch::empty({100, 100});
    made.normal_(0, 1, generator);
    made.add_(1);
    return made;
  };
  const at::Tensor whole = make(at::detail::createCPUGenerator(5));
  const at::Tensor deferred = [&] {
    const DeferredInit no_bytes;
    return make(at::detail::createCPUGenerator(5));
  }();
  ASSERT_TRUE(is_deferred(deferred));
  at::Tensor target = at::zeros({100, 100});
  copy_values(target, deferred);
  EXPECT_TRUE(at::equal(target, whole));
  EXPECT_TRUE(is_deferred(deferred)) << "it was computed elsewhere";
  at::Tensor as_double = at::zeros({100, 100}, at::kDouble);
  copy_values(as_double, deferred);
  EXPECT_TRUE(at::equal(as_double, whole.to(at::kDouble)));
}

TEST(DeferredInit, HoldsAtMostOneTensorAtATime) {
  intercept::MemoryCount memory;
  const auto make = [] {
    torch::nn::Sequential model;
    for (int i = 0; i < 8; ++i) model->push_back(torch::nn::Linear(256, 256));
    return model;
  };
  const auto deferred = [&] {
    const DeferredInit no_bytes;
    return make();
  }();
  const std::int64_t weight_bytes = 256 * 256 * 4;
  const std::int64_t small = 8 * 256 * 4 + 1024;  // the biases, and numbers on their way
  EXPECT_LE(memory.peak_bytes(), weight_bytes + small);
  EXPECT_LE(memory.live_bytes(), small);
  for (const auto& parameter : deferred->parameters()) materialize(parameter);
  EXPECT_GE(memory.live_bytes(), 8 * weight_bytes);
}

TEST(DeferredInit, SaysWhatToDoToWhoReadsATensorWithoutValues) {
  const at::Tensor made = [] {
    const DeferredInit no_bytes;
    return torch::ones({100, 100});
  }();
  EXPECT_THAT(testing::message_of<c10::Error>([&] { made.sum(); }), HasSubstr("has no values yet"));
  materialize(made);
  EXPECT_EQ(made.sum().item<float>(), 10000);
}

TEST(DeferredInit, LeavesOtherThreadsAndLaterTensorsAlone) {
  at::Tensor after;
  {
    const DeferredInit no_bytes;
    const DeferredInit nested;
  }
  after = torch::ones({100, 100});
  EXPECT_FALSE(is_deferred(after));
}

TEST(DeferredInit, RefusesWhatItCannotRemember) {
  const DeferredInit no_bytes;
  at::Tensor made = torch::ones({100, 100});
  const auto expect_refused = [](const auto& build, std::initializer_list<std::string_view> parts) {
    testing::expect_parts(testing::message_of<ConfigError>(build), parts);
  };
  expect_refused([&] { made.resize_({200, 200}); },
                 {"under tessera::DeferredInit, aten::resize_ cannot be deferred", "outside of the guard"});
  expect_refused([&] { at::_foreach_mul_({made}, 2); }, {"aten::_foreach_mul_", "writes several tensors"});
  expect_refused([&] { at::cat_out(made, {made.narrow(0, 0, 50), made.narrow(0, 50, 50)}); },
                 {"aten::cat", "reads what it writes from a list"});
  expect_refused([&] { at::native_dropout(made, 0.5, true); },
                 {"aten::native_dropout", "draws random numbers that cannot be drawn again"});
  expect_refused([&] { at::bernoulli_out(made, at::full({100, 100}, 0.5), std::nullopt); },
                 {"aten::bernoulli", "draws random numbers depending on values"});
}

TEST(DeferredInit, NoticesThatAnInputHasChanged) {
  const at::Tensor given = torch::ones({200, 200});
  const at::Tensor made = [&] {
    const DeferredInit no_bytes;
    return torch::empty({200, 200}).copy_(given);
  }();
  given.zero_();
  EXPECT_THAT(testing::message_of<ConfigError>([&] { materialize(made); }),
              HasSubstr("aten::copy_ read under tessera::DeferredInit has changed since"));
}

}  // namespace
}  // namespace tessera
