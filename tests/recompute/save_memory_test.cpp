// Strategies that save memory, on models that know nothing of them.
#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>
#include <tessera/recompute/memory_strategy.h>
#include <tessera/recompute/save_memory.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "parity/models.h"
#include "recompute/blocks.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::make_parity_model;
using testing::message_of;
using testing::ParityModel;
using testing::waves;

/// The loss, all gradients and the random numbers that follow.
std::vector<at::Tensor> results_of(torch::nn::Module& model, const std::function<at::Tensor()>& loss_of) {
  torch::manual_seed(7);
  model.zero_grad();
  const at::Tensor loss = loss_of();
  loss.backward();
  std::vector<at::Tensor> results{loss.detach().clone()};
  for (const at::Tensor& one : model.parameters()) {
    results.push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
  }
  for (const at::Tensor& one : model.buffers()) results.push_back(one.clone());
  results.push_back(at::rand({3}, at::kDouble));
  return results;
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_TRUE(at::equal(found.front(), expected.front())) << "the loss";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << "result " << i;
    if (!expected[i].defined()) continue;
    EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), tolerance) << "result " << i;
  }
}

/// Same results with the strategy as without. Returns the report after backward.
SavedMemoryReport expect_parity(const std::shared_ptr<torch::nn::Module>& model, const SaveMemoryOptions& options,
                                const std::function<at::Tensor()>& loss_of, double tolerance = 1e-12) {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& one : model->buffers()) buffers.push_back(one.clone());
  const auto expected = results_of(*model, loss_of);
  for (std::size_t i = 0; i < buffers.size(); ++i) model->buffers()[i].copy_(buffers[i]);
  const MemorySaving saved = save_memory(model, options);
  expect_equal(results_of(*model, loss_of), expected, tolerance);
  const SavedMemoryReport report = saved.report();
  EXPECT_EQ(report.kept_bytes, 0) << "after backward";
  EXPECT_EQ(report.num_kept, 0) << "after backward";
  return report;
}

SaveMemoryOptions standard() { return SaveMemoryOptions().strategy("standard"); }
SaveMemoryOptions aggressive(std::vector<std::string> modules = {}) {
  return SaveMemoryOptions().strategy("aggressive").modules(std::move(modules));
}

class SavedModels : public ::testing::TestWithParam<std::string> {};

TEST_P(SavedModels, HaveTheGradientsOfAPlainRun) {
  const auto model = make_parity_model(GetParam(), at::kDouble);
  const auto loss_of = [&] { return model->loss(model->forward(model->input(1, 0)), 1, 0); };
  std::vector<std::string> parts;
  for (const auto& item : model->named_children()) parts.push_back(item.key());
  const SavedMemoryReport whole = expect_parity(model, aggressive(parts), loss_of);
  EXPECT_GT(whole.num_dropped, 0);
  EXPECT_GT(whole.num_operators_again, 0);
  const SavedMemoryReport cheap = expect_parity(model, standard(), loss_of);
  if (GetParam() == "lstm" || GetParam() == "attention") return;  // hardly anything in them is cheap
  EXPECT_GT(cheap.num_dropped, 0);
  EXPECT_GT(cheap.num_operators_again, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SavedModels,
                         ::testing::Values("gpt", "recomputed gpt", "conv", "lstm", "transformer", "attention",
                                           "sequential", "gpt2", "bert", "vit", "resnet", "function",
                                           "transformer with dropout", "gpt2 with dropout", "bert with dropout",
                                           "vit with dropout"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

/// Blocks in a ModuleList.
struct Stack : torch::nn::Module {
  explicit Stack(std::size_t count, double dropped = 0.1) : blocks(testing::make_blocks(count, dropped)) {
    torch::nn::ModuleList list;
    for (const auto& block : blocks) list->push_back(block);
    register_module("blocks", list);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<testing::Block>> blocks;
};

TEST(SaveMemory, TakesTheLayersOfTheModel) {
  const auto model = std::make_shared<Stack>(3);
  const at::Tensor input = waves({2, 5, 16});
  const auto loss_of = [&] { return model->forward(input).square().mean(); };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive(), loss_of);
  const MemorySaving saved = save_memory(model, aggressive());
  EXPECT_EQ(saved.modules(), (std::vector<std::string>{"blocks.0", "blocks.1", "blocks.2"}));
}

TEST(SaveMemory, TakesTheNameThatALayoutHasForAStrategy) {
  const auto model = std::make_shared<Stack>(2);
  EXPECT_EQ(save_memory(model, MemoryStrategy::kBasic).modules().size(), 0U);
  EXPECT_EQ(save_memory(model, MemoryStrategy::kStandard).modules().size(), 0U);
  EXPECT_EQ(save_memory(model, MemoryStrategy::kAggressive).modules().size(), 2U);
  EXPECT_THROW(static_cast<void>(save_memory(model, MemoryStrategy::kExtreme)), ConfigError);
}

TEST(SaveMemory, EndsWithItsHandleAndLeavesGraphsWhole) {
  const auto model = std::make_shared<Stack>(2);
  const at::Tensor input = waves({2, 5, 16});
  const auto plain = results_of(*model, [&] { return model->forward(input).square().mean(); });
  for (const auto& options : {standard(), aggressive()}) {
    const auto later = results_of(*model, [&] {
      const MemorySaving saved = save_memory(model, options);
      return model->forward(input).square().mean();
    });
    expect_equal(later, plain, 1e-12);
  }
  const MemorySaving again = save_memory(model, standard());
}

TEST(SaveMemory, GivesGradientsOfGradients) {
  const auto model = std::make_shared<Stack>(2);
  const at::Tensor input = waves({2, 5, 16}).requires_grad_(true);
  const auto loss_of = [&] {
    const at::Tensor loss = model->forward(input).square().mean();
    const at::Tensor gradient = torch::autograd::grad({loss}, {input}, {}, true, /*create_graph=*/true)[0];
    return loss + gradient.square().sum();
  };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive(), loss_of);
}

TEST(SaveMemory, ServesSeveralPassesOverOneGraph) {
  const auto model = std::make_shared<Stack>(2);
  const at::Tensor input = waves({2, 5, 16});
  const auto run = [&] {
    torch::manual_seed(3);
    model->zero_grad();
    const at::Tensor loss = model->forward(input).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return model->blocks[0]->mix->weight.grad().clone();
  };
  const at::Tensor expected = run();
  for (const auto& options : {standard(), aggressive()}) {
    const MemorySaving saved = save_memory(model, options);
    EXPECT_LE((run() - expected).abs().max().item<double>(), 1e-12);
  }
}

TEST(SaveMemory, ServesForwardsThatComeBeforeTheirBackwards) {
  const auto model = std::make_shared<Stack>(2);
  const auto loss_of = [&] {
    const at::Tensor first = model->forward(waves({2, 5, 16})).square().mean();
    const at::Tensor second = model->forward(waves({2, 5, 16}, 1)).square().mean();
    {
      const at::NoGradGuard evaluation;
      model->forward(waves({2, 5, 16}, 2));
    }
    return first + 2 * second;
  };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive(), loss_of);
}

/// One layer that is applied again and again.
struct Loop : torch::nn::Module {
  Loop() : block(register_module("block", testing::make_blocks(1).front())) {}
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < 4; ++i) x = block->forward(x);
    return x;
  }
  std::shared_ptr<testing::Block> block;
};

TEST(SaveMemory, KeepsOnlyWhatEntersALayerThatIsAppliedManyTimes) {
  const auto model = std::make_shared<Loop>();
  const at::Tensor input = waves({2, 5, 16});
  expect_parity(model, standard(), [&] { return model->forward(input).square().mean(); });
  expect_parity(model, aggressive({"block"}), [&] { return model->forward(input).square().mean(); });
  const MemorySaving saved = save_memory(model, aggressive({"block"}));
  const at::Tensor out = model->forward(input);
  EXPECT_LE(saved.report().kept_bytes, 5 * 2 * 5 * 16 * 8);
}

TEST(SaveMemory, HasTheGradientsOfAutocast) {
  const auto model = std::make_shared<Stack>(2);
  model->to(at::kFloat);
  const at::Tensor input = waves({2, 5, 16}).to(at::kFloat);
  const auto loss_of = [&] {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    const at::Tensor out = model->forward(input);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return out.to(at::kFloat).square().mean();
  };
  expect_parity(model, standard(), loss_of, 0);
  expect_parity(model, aggressive(), loss_of, 0);
}

/// Layers between which a program does whatever `between` says.
struct Freely : torch::nn::Module {
  using Between = std::function<at::Tensor(const at::Tensor&)>;
  explicit Freely(Between its_between) : between(std::move(its_between)) {
    namespace nn = torch::nn;
    first = register_module("first", nn::Linear(16, 32));
    second = register_module("second", nn::Linear(32, 16));
    to(at::kDouble);
    testing::fill_by_formula(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return second(between(first(x))); }

  Between between;
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

void expect_parity_of(const Freely::Between& between) {
  const auto model = std::make_shared<Freely>(between);
  const at::Tensor input = waves({8, 16});
  const auto loss_of = [&] { return model->forward(input).square().mean(); };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive({"first", "second"}), loss_of);
}

TEST(SaveMemory, ReplaysWhatProgramsDoBetweenLayers) {
  expect_parity_of([](const at::Tensor& x) { return x.clone().mul_(2).add_(1).tanh(); });
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor y = x * 1.5;
    return at::relu_(y);
  });
  expect_parity_of([](const at::Tensor& x) { return at::gelu(x).view({4, 2, 32}).transpose(0, 1).reshape({8, 32}); });
  expect_parity_of([](const at::Tensor& x) { return x.sum().item<double>() > 0 ? at::gelu(x) : at::silu(x); });
  expect_parity_of([](const at::Tensor& x) { return x * (at::rand_like(x) > 0.5); });
  expect_parity_of([](const at::Tensor& x) {
    const auto parts = at::gelu(x).chunk(2, 1);
    return at::cat({parts[1], parts[0].sin()}, 1);
  });
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor y = at::gelu(x);
    y.slice(1, 0, 4).mul_(3);
    return y;
  });
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor buffer = at::zeros({8, 32}, x.options().requires_grad(false));
    buffer.slice(0, 0, 4).copy_(x.slice(0, 4, 8));
    return at::gelu(buffer) + x;
  });
  expect_parity_of([](const at::Tensor& x) { return x.index({x.detach().sum(1).argsort()}).exp(); });
  expect_parity_of([](const at::Tensor& x) { return at::softmax(x, 1) * at::dropout(at::sigmoid(x), 0.3, true); });
}

TEST(SaveMemory, KeepsWhatAProgramChangesBehindAutogradsBack) {
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor y = at::gelu(x);
    y.data().mul_(2);
    return y;
  });
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor y = at::gelu(x) + x;
    const at::NoGradGuard no_grad;
    y.clamp_(-0.2, 0.2);
    return y;
  });
}

TEST(SaveMemory, KeepsWhatAProgramWritesThroughAPointer) {
  expect_parity_of([](const at::Tensor& x) {
    const at::Tensor mask = at::zeros({8, 32}, at::kDouble);
    for (int i = 0; i < 100; ++i) mask.data_ptr<double>()[i] = 0.5;
    return at::gelu(x * mask);
  });
  expect_parity_of([](const at::Tensor& x) {
    const at::Tensor mask = at::empty_like(x, x.options().requires_grad(false));
    std::fill_n(mask.data_ptr<double>(), mask.numel(), 0.25);
    return at::gelu(x) * mask;
  });
  expect_parity_of([](const at::Tensor& x) {
    const at::Tensor scaled = x.detach() * 2;
    scaled.data_ptr<double>()[0] = 7;
    return at::gelu(x) * scaled;
  });
}

/// Its forward computes through a pointer.
struct ByPointer : torch::autograd::Function<ByPointer> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = x.clone();
    for (std::int64_t i = 0; i < y.numel(); ++i) y.data_ptr<double>()[i] *= 3;
    context->save_for_backward({x, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * (saved[1] / saved[0])};
  }
};

TEST(SaveMemory, KeepsWhatCustomFunctionsComputeAndSave) {
  expect_parity_of([](const at::Tensor& x) { return at::gelu(ByPointer::apply(at::gelu(x) + 2)); });
}

TEST(SaveMemory, KeepsWhatAGeneratorOfTheProgramDrew) {
  expect_parity_of([](const at::Tensor& x) {
    at::Tensor noise = at::empty_like(x, x.options().requires_grad(false));
    noise.bernoulli_(0.5, at::make_generator<at::CPUGeneratorImpl>(5));
    return at::gelu(x * noise);
  });
}

/// Its second layer is frozen, and changes what enters it.
struct Changing : torch::nn::Module {
  Changing() {
    first = register_module("first", torch::nn::Linear(16, 16));
    second = register_module("second", torch::nn::Linear(16, 16));
    to(at::kDouble);
    testing::fill_by_formula(*this);
    for (at::Tensor& one : second->parameters()) one.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = first(x);
    const at::Tensor k = second(h);
    h.mul_(3);
    return at::gelu(k) + h.sin();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

TEST(SaveMemory, KeepsACopyOfWhatALayerChangesInPlace) {
  const auto model = std::make_shared<Changing>();
  const auto loss_of = [&] { return model->forward(waves({8, 16})).square().mean(); };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive({"first", "second"}), loss_of);
}

TEST(SaveMemory, ServesForwardsOfAnyThread) {
  const auto model = std::make_shared<Stack>(2);
  const at::Tensor input = waves({2, 5, 16});
  const auto plain = results_of(*model, [&] { return model->forward(input).square().mean(); });
  for (const auto& options : {standard(), aggressive()}) {
    const MemorySaving saved = save_memory(model, options);
    std::vector<at::Tensor> found;
    std::thread([&] { found = results_of(*model, [&] { return model->forward(input).square().mean(); }); }).join();
    expect_equal(found, plain, 1e-12);
    EXPECT_GT(saved.report().num_dropped, 0);
  }
}

TEST(SaveMemory, LeavesHooksOnActivationsAlone) {
  int calls = 0;
  const auto model = std::make_shared<Freely>([&](const at::Tensor& x) {
    const at::Tensor y = at::gelu(x);
    y.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      return gradient * 2;
    });
    return y;
  });
  const auto loss_of = [&] { return model->forward(waves({8, 16})).square().mean(); };
  expect_parity(model, standard(), loss_of);
  expect_parity(model, aggressive({"first", "second"}), loss_of);
  EXPECT_EQ(calls, 4);
}

TEST(SaveMemory, LeavesAnotherModelAlone) {
  const auto model = std::make_shared<Stack>(2);
  const auto other = std::make_shared<Stack>(2);
  const MemorySaving saved = save_memory(model, standard());
  const at::Tensor out = other->forward(waves({2, 5, 16}));
  EXPECT_EQ(saved.report().num_dropped, 0);
}

TEST(SaveMemory, IsFreedWhenNoBackwardComes) {
  const auto model = std::make_shared<Stack>(2);
  for (const auto& options : {standard(), aggressive()}) {
    const MemorySaving saved = save_memory(model, options);
    for (int i = 0; i < 3; ++i) model->forward(waves({2, 5, 16}));
    EXPECT_LE(saved.report().kept_bytes, 2 * 5 * 16 * 8) << "what entered the part that may go on";
  }
}

}  // namespace
}  // namespace tessera
