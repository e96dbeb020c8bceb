// What the strategies that save memory refuse.
#include <tessera/core/error.h>
#include <tessera/recompute/save_memory.h>

#include <torch/nn/modules.h>

#include <atomic>
#include <functional>
#include <thread>

#include "recompute/blocks.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::waves;

struct Pair : torch::nn::Module {
  using Between = std::function<at::Tensor(const at::Tensor&)>;
  explicit Pair(Between its_between = [](const at::Tensor& x) { return at::gelu(x); })
      : between(std::move(its_between)),
        first(register_module("first", torch::nn::Linear(16, 32))),
        second(register_module("second", torch::nn::Linear(32, 16))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(between(first(x))).square().mean(); }

  Between between;
  torch::nn::Linear first;
  torch::nn::Linear second;
};

SaveMemoryOptions cheap_operators() { return SaveMemoryOptions().strategy("standard"); }
SaveMemoryOptions both_layers() { return SaveMemoryOptions().strategy("aggressive").modules({"first", "second"}); }

std::string refusal_of(const std::shared_ptr<torch::nn::Module>& model, const SaveMemoryOptions& options) {
  return message_of<ConfigError>([&] { static_cast<void>(save_memory(model, options)); });
}

TEST(SaveMemoryRefuses, StrategiesThatThereAreNot) {
  const auto model = std::make_shared<Pair>();
  expect_parts(refusal_of(nullptr, {}), {"there is no model, the pointer is null"});
  expect_parts(refusal_of(model, SaveMemoryOptions().strategy("some")),
               {"there is no strategy \"some\"", "choose \"basic\", \"standard\" or \"aggressive\""});
  expect_parts(refusal_of(model, SaveMemoryOptions().strategy("extreme")),
               {"the strategy \"extreme\" needs activations that are moved to the host or to a disk"});
  expect_parts(refusal_of(model, SaveMemoryOptions().modules({"first"})),
               {"modules are for the strategy \"aggressive\", and it is \"standard\""});
}

TEST(SaveMemoryRefuses, ModulesThatThereAreNot) {
  const auto model = std::make_shared<Pair>();
  expect_parts(refusal_of(model, SaveMemoryOptions().strategy("aggressive")),
               {"the model has no ModuleList and no Sequential", "SaveMemoryOptions().modules({...})"});
  expect_parts(refusal_of(model, both_layers().modules({"third.*"})),
               {"no module has the name \"third.*\"", "The model has first, second"});
  const torch::nn::Sequential empty{torch::nn::Tanh(), torch::nn::ReLU()};
  expect_parts(refusal_of(empty.ptr(), SaveMemoryOptions().strategy("aggressive")),
               {"have no parameters, by which their operators would be known"});
}

TEST(SaveMemoryRefuses, AModelThatHasItAlready) {
  const auto model = std::make_shared<Pair>();
  const MemorySaving saved = save_memory(model, cheap_operators());
  expect_parts(refusal_of(model, both_layers()), {"save_memory() was called for this model already"});
}

std::string refusal_in_backward(Pair& model, const std::function<void()>& before) {
  const at::Tensor loss = model.forward(waves({8, 16}));
  before();
  return message_of<ConfigError>([&] { loss.backward(); });
}

TEST(SaveMemoryRefuses, WeightsThatWereChangedBeforeBackward) {
  const auto model = std::make_shared<Pair>();
  for (const auto& options : {cheap_operators(), both_layers()}) {
    const MemorySaving saved = save_memory(model, options);
    const auto text = refusal_in_backward(*model, [&] {
      const at::NoGradGuard no_grad;
      model->first->weight.add_(1);
      model->second->weight.add_(1);
    });
    // Whichever is found first.
    if (text.find("is needed to compute activations again") != std::string::npos) continue;
    expect_parts(text, {"a tensor that backward needs was changed in place after forward had used it",
                        "Run backward before the optimizer's step"});
  }
}

TEST(SaveMemoryRefuses, ActivationsThatWereChangedBehindAutogradsBack) {
  at::Tensor seen;
  const auto model = std::make_shared<Pair>([&](const at::Tensor& x) {
    seen = x;
    return at::gelu(x);
  });
  {
    const MemorySaving saved = save_memory(model, cheap_operators());
    const auto text = refusal_in_backward(*model, [&] { seen.data().mul_(2); });
    expect_parts(text, {"has changed a tensor in place that is needed to compute activations again"});
  }
  model->between = [](const at::Tensor& x) {
    const at::Tensor y = at::gelu(x);
    const at::Tensor z = y.sin();
    y.data().mul_(2);
    return y + z;
  };
  {
    const MemorySaving saved = save_memory(model, both_layers());
    const auto text = refusal_in_backward(*model, [] {});
    expect_parts(text,
                 {"changes a tensor in place where that cannot be replayed, as data(), NoGradGuard and detach_()"});
  }
}

TEST(SaveMemoryRefuses, WeightsThatWereChangedBehindAutogradsBack) {
  const auto model = std::make_shared<Pair>();
  const MemorySaving saved = save_memory(model, both_layers());
  const auto text = refusal_in_backward(*model, [&] { model->first->weight.data().add_(1); });
  expect_parts(text, {"has changed a tensor in place that is needed to compute activations again"});
}

TEST(SaveMemoryRefuses, AChangeInPlaceOfWhatGradientsNeed) {
  const auto model = std::make_shared<Pair>([](const at::Tensor& x) {
    const at::Tensor y = at::gelu(x);
    const at::Tensor z = y.sin();
    y.mul_(2);
    return z + y.cos();
  });
  EXPECT_THROW(model->forward(waves({8, 16})).backward(), c10::Error) << "without it";
  {
    const MemorySaving saved = save_memory(model, cheap_operators());
    const auto text = refusal_in_backward(*model, [] {});
    expect_parts(text, {"has computed was changed in place after it was taken for something that backward computes"});
  }
  const MemorySaving saved = save_memory(model, both_layers());
  const auto text = refusal_in_backward(*model, [] {});
  expect_parts(text, {"the forward changes a tensor of first in place that its gradients need"});
}

TEST(SaveMemoryRefuses, RandomNumbersThatAnotherThreadMixedUp) {
  // The other thread goes on drawing, so that some of its numbers fall between those of a dropout.
  std::atomic<bool> goes_on = true;
  std::thread other([&] {
    at::Tensor numbers = at::empty({64});
    while (goes_on) numbers.uniform_();
  });
  const auto model = std::make_shared<Pair>([](const at::Tensor& x) { return at::dropout(at::gelu(x), 0.5, true); });
  const MemorySaving saved = save_memory(model, both_layers());
  std::string text;
  for (int i = 0; i < 10000 && text.empty(); ++i) {
    try {
      model->forward(waves({8, 16})).backward();
    } catch (const ConfigError& error) {
      text = error.what();
    }
  }
  goes_on = false;
  other.join();
  ASSERT_FALSE(text.empty());
  expect_parts(text, {"drew other random numbers when it ran again in backward",
                      "another thread used LibTorch's default generator at the same time"});
}

TEST(SaveMemoryRefuses, ToHideWhatTheSecondRunThrows) {
  const auto model = std::make_shared<Pair>();
  const MemorySaving saved = save_memory(model, both_layers());
  const at::Tensor loss = model->forward(waves({8, 16}));
  model->first->weight.set_data(waves({3, 3}));
  const auto text = message_of<c10::Error>([&] { loss.backward(); });
  expect_parts(text, {"of first ran again in backward to save memory"});
}

TEST(SaveMemoryRefuses, SettingsThatChangedBeforeBackward) {
  const auto model = std::make_shared<Pair>([](const at::Tensor& x) {
    const at::Tensor heads = x.view({1, 2, 4, 32});
    return at::scaled_dot_product_attention(heads, heads, heads).view({8, 32});
  });
  const MemorySaving saved = save_memory(model, both_layers());
  const at::Tensor loss = model->forward(waves({8, 16}));
  at::globalContext().setSDPUseFlash(false);
  const auto text = message_of<ConfigError>([&] { loss.backward(); });
  at::globalContext().setSDPUseFlash(true);
  expect_parts(text, {"did something else when it ran again in backward: it saved other tensors for its gradients"});
}

}  // namespace
}  // namespace tessera
