// What a program may not do while gradients are promised: refused in every way to share a model, and the model is good
// for another step.
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "support/require.h"
#include "train/shared_net.h"

namespace tessera::testing {
namespace {

struct Trainee {
  Trainee(const World& world, const Way& way)
      : net(std::make_shared<SharedNet>()),
        model(parallelize(net, make_mesh(world, way.options), way.options)),
        optimizer(model.parameters(), torch::optim::SGDOptions(0.1)) {}

  at::Tensor loss() const {
    const at::Tensor x = at::sin(at::arange(2 * kSharedNetInputs, at::kDouble));
    return net->forward(x.view({2, kSharedNetInputs})).square().mean();
  }

  std::shared_ptr<SharedNet> net;
  ParallelModel model;
  torch::optim::SGD optimizer;
};

using Misuse = std::function<void(Trainee&, PromisedGradients&)>;

/// `words`: of the refusal. Afterwards a step gives what it gives in one process.
void expect_refused(const std::string& words, const Misuse& misuse) {
  const auto alone = std::make_shared<SharedNet>();
  torch::optim::SGD of_alone(ParallelModel(alone).parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor x = at::sin(at::arange(2 * kSharedNetInputs, at::kDouble)).view({2, kSharedNetInputs});
  alone->forward(x).square().mean().backward();
  of_alone.step();
  for (const Way& way : all_ways()) {
    run_threads(2, [&](const World& world) {
      Trainee trainee(world, way);
      std::string text;
      try {
        auto promised = trainee.model.promise_gradients();
        misuse(trainee, promised);
      } catch (const std::exception& error) {  // where an operator finds out, it is LibTorch's
        text = error.what();
      }
      require(text.find(words) != std::string::npos, way.name + " refuses: " + words + ", found: " + text);
      trainee.optimizer.zero_grad();
      trainee.loss().backward();
      trainee.optimizer.step();
      const auto whole = trainee.model.gather();
      for (const auto& entry : alone->named_parameters()) {
        require(at::allclose(trainee.net->named_parameters()[entry.key()], entry.value(), 1e-12, 1e-14),
                way.name + ", the step after it: " + entry.key());
      }
    });
  }
}

TEST(PromisedGradients, RefusesAGradientOfWhatIsComplete) {
  expect_refused("came after complete() had named it", [](Trainee& trainee, PromisedGradients& promised) {
    trainee.loss().backward();
    promised.complete(trainee.net->side->parameters());
    trainee.loss().backward();
  });
}

TEST(PromisedGradients, RefusesWhatIsNoParameter) {
  expect_refused("no parameter of the model", [](Trainee& trainee, PromisedGradients& promised) {
    trainee.loss().backward();
    promised.complete({at::zeros({3})});
  });
}

TEST(PromisedGradients, RefusesToClip) {
  expect_refused("looks at gradients while they are promised", [](Trainee& trainee, PromisedGradients&) {
    trainee.loss().backward();
    clip_grad_norm(trainee.model, 1.0);
  });
}

TEST(PromisedGradients, RefusesToUnscale) {
  expect_refused("looks at gradients while they are promised", [](Trainee& trainee, PromisedGradients&) {
    GradScaler scaler(trainee.model);
    scaler.scale(trainee.loss()).backward();
    scaler.unscale(trainee.optimizer);
  });
}

TEST(PromisedGradients, RefusesASecondPromise) {
  expect_refused("there is one already",
                 [](Trainee& trainee, PromisedGradients&) { const auto second = trainee.model.promise_gradients(); });
}

TEST(PromisedGradients, RefusesToGoOnAfterAFailedPass) {
  expect_refused("failed while gradients were promised", [](Trainee& trainee, PromisedGradients& promised) {
    trainee.loss().backward();
    trainee.net->throws_in_backward = true;
    const at::Tensor loss = trainee.loss();
    trainee.net->throws_in_backward = false;
    EXPECT_THROW(loss.backward(), std::runtime_error);
    promised.finish();
  });
}

TEST(PromisedGradients, RefusesToClearWhatIsComplete) {
  expect_refused("was cleared after complete() had named it", [](Trainee& trainee, PromisedGradients& promised) {
    trainee.loss().backward();
    promised.complete(trainee.net->side->parameters());
    trainee.net->zero_grad();
    promised.finish();
  });
}

TEST(PromisedGradients, RefusesToBeCompletedInsideABackward) {
  expect_refused("backward pass", [](Trainee& trainee, PromisedGradients& promised) {
    const at::Tensor loss = trainee.loss();
    loss.register_hook([&](const at::Tensor&) { promised.finish(); });
    loss.backward();
  });
}

TEST(PromisedGradients, RefusesFrozenFlagsThatChange) {
  for (const Way& way : all_ways()) {
    if (!way.is_ddp()) continue;
    run_threads(2, [&](const World& world) {
      Trainee trainee(world, way);
      auto promised = trainee.model.promise_gradients();
      trainee.loss().backward();
      trainee.net->side->bias.requires_grad_(false);
      EXPECT_THROW(promised.finish(), ConfigError);
    });
  }
}

/// The weights are written to then; so only that it is said.
TEST(PromisedGradients, RefusesAnOptimizerThatSteps) {
  for (const Way& way : all_ways()) {
    run_threads(2, [&](const World& world) {
      Trainee trainee(world, way);
      auto promised = trainee.model.promise_gradients();
      trainee.loss().backward();
      promised.complete(trainee.net->side->parameters());
      std::string text;
      try {
        trainee.optimizer.step();
        promised.finish();
      } catch (const std::exception& error) {
        text = error.what();
      }
      require(text.find("written to while their gradients were promised") != std::string::npos, way.name + ": " + text);
    });
  }
}

TEST(PromisedGradients, RefusesOtherMemoryWhileAveragesAreUnderWay) {
  run_threads(2, [](const World& world) {
    const auto net = std::make_shared<SharedNet>();
    const auto ddp = distribute(net, world);
    auto promised = ddp.promise_gradients();
    const at::Tensor x = at::ones({2, kSharedNetInputs}, at::kDouble);
    net->forward(x).sum().backward();
    promised.complete(net->side->parameters());
    net->to(at::kFloat);
    std::string text;
    try {
      promised.finish();
    } catch (const ConfigError& error) {
      text = error.what();
    }
    require_equal(text.find("a parameter was given other memory while its gradients were promised"), 0, text);
  });
}

/// Words of what `call` is refused with.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PromisedGradients, IsRefusedWhereItCannotBeKept) {
  run_threads(2, [](const World& world) {
    const auto expect = [](const ParallelModel& model, const std::string& why) {
      const std::string text = refusal_of([&] { const auto promised = model.promise_gradients(); });
      require(text.find("promise_gradients() is refused") == 0 && text.find(why) != std::string::npos,
              why + ", found: " + text);
    };
    const auto net = [] { return torch::nn::Linear(4, 4).ptr(); };
    expect(distribute(net(), world, DdpOptions().static_graph(true)),
           "with static_graph(true) one backward pass has all gradients");
    expect(distribute(net(), world, DdpOptions().reproducible(true).micro_batches(2)),
           "reproducible mode adds up the micro-batches of a step itself");
    expect(fully_shard(net(), world, FsdpOptions().reproducible(true).micro_batches(2)),
           "reproducible mode adds up the micro-batches of a step itself");
    const auto joined = distribute(net(), world);
    auto join = joined.join();
    expect(joined, "inside join() each backward pass is a step");
    join.finish();
  });
}

TEST(PromisedGradients, MeansNothingToOneProcess) {
  const auto net = std::make_shared<SharedNet>();
  auto promised = ParallelModel(net).promise_gradients();
  net->forward(at::ones({2, kSharedNetInputs}, at::kDouble)).sum().backward();
  promised.complete(net->side->parameters());
  promised.finish();
  promised.finish();
  EXPECT_TRUE(net->side->weight.grad().defined());
  const std::string text = refusal_of([&] { promised.complete({}); });
  EXPECT_EQ(text.find("complete() was called after finish()"), 0) << text;
}

}  // namespace
}  // namespace tessera::testing
