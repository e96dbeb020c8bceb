// Parameters that are frozen and unfrozen while a model is trained.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distributed_data_parallel.h>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include "data_parallel/small_models.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

namespace tessera {
namespace {

using testing::backward;
using testing::Chain;
using testing::require;
using testing::require_equal;

void train(torch::nn::Linear& layer, bool trains) {
  for (auto& parameter : layer->parameters()) parameter.set_requires_grad(trains);
}

/// Frozen at first, trained from step 2 on; another layer the other way round.
void change(Chain& model, int step) {
  if (step == 0) train(model.first, false);
  if (step == 2) train(model.first, true);
  if (step == 4) train(model.middle, false);
  if (step == 6) train(model.middle, true);
}

torch::optim::SGD optimizer_of(Chain& model) {
  return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
}

TEST(FrozenParameters, MayChangeWhileTraining) {
  for (const DdpOptions& options : {DdpOptions(), DdpOptions().bucket_bytes(64).find_unused_parameters(true),
                                    DdpOptions().gradient_as_bucket_view(false), DdpOptions().static_graph(true)}) {
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<Chain>();
      Chain alone;
      change(*model, 0);
      change(alone, 0);
      const auto ddp = distribute(model, world, options);
      auto optimizer = optimizer_of(*model);
      auto other = optimizer_of(alone);
      for (int step = 0; step < 8; ++step) {
        if (step > 0) change(*model, step);
        if (step > 0) change(alone, step);
        optimizer.zero_grad();
        other.zero_grad();
        backward(*model, 2 * step + world.rank());
        for (const int rank : {0, 1}) (alone.forward(testing::chain_input(2 * step + rank)).sum() / 2).backward();
        optimizer.step();
        other.step();
        const auto expected = alone.named_parameters();
        for (const auto& entry : model->named_parameters()) {
          require(at::allclose(entry.value().detach(), expected[entry.key()].detach(), 1e-5, 1e-6),
                  entry.key() + " after step " + std::to_string(step));
        }
      }
    });
  }
}

TEST(FrozenParameters, MayNotChangeWithinAForward) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    train(model->first, false);
    const auto ddp = distribute(model, world);
    backward(*model, world.rank());
    std::ignore = model->last->weight.norm();  // computes with a parameter: so begins a forward
    train(model->first, true);
    testing::expect_parts(testing::message_of<ConfigError>([&] { backward(*model, world.rank()); }),
                          {"frozen or unfrozen", "NoGradGuard", "rank"});
  });
}

TEST(FrozenParameters, MayNotChangePlacesWithinAForward) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    train(model->first, false);
    const auto ddp = distribute(model, world, DdpOptions().find_unused_parameters(true));
    backward(*model, world.rank());
    std::ignore = model->last->weight.norm();
    // Now the loss depends on none of those that were trained.
    for (torch::nn::Linear* layer : {&model->first, &model->middle, &model->last})
      train(*layer, layer == &model->first);
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    testing::expect_parts(testing::message_of<ConfigError>([&] { backward(*model, world.rank()); }),
                          {"frozen or unfrozen", "NoGradGuard", "rank"});
    // It has been said; from here on they are averaged.
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    backward(*model, world.rank());
    const at::Tensor gradient = model->first->weight.grad().clone();
    world.comm().broadcast(gradient, 0);
    require_equal(gradient, model->first->weight.grad(), "the same on both ranks");
  });
}

/// Computes with its second argument where no graph is made.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& scales) {
    context->save_for_backward({x, scales});
    return x * scales.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1].sum(), (gradients[0] * saved[0]).sum().expand_as(saved[1])};
  }
};

TEST(FrozenParameters, AreNotUnfrozenUnseen) {
  for (const bool reproducible : {false, true}) {
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<Chain>();
      train(model->first, false);
      const auto ddp =
          distribute(model, world, DdpOptions().reproducible(reproducible).micro_batches(reproducible ? 2 : 0));
      backward(*model, world.rank());
      for (torch::nn::Linear* layer : {&model->first, &model->middle, &model->last})
        train(*layer, layer == &model->first);
      const at::Tensor x = at::full({3}, 1.0 + world.rank());
      testing::expect_parts(
          testing::message_of<ConfigError>([&] { Scaled::apply(x, model->first->weight).sum().backward(); }),
          {"first.weight was unfrozen, and its forward was not seen", "torch::autograd::Function", "rank"});
    });
  }
}

TEST(FrozenParameters, MayNotBeAllOfThem) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    DistributedDataParallel<Chain> ddp(model, world);
    const auto forward = [&] { return ddp(testing::chain_input(world.rank()), false).sum(); };
    forward().backward();
    for (torch::nn::Linear* layer : {&model->first, &model->middle, &model->last}) train(*layer, false);
    for (int i = 0; i < 2; ++i) {
      testing::expect_parts(testing::message_of<ConfigError>(forward), {"no parameter that requires a gradient"});
    }
    train(model->last, true);
    forward().backward();
    const at::Tensor gradient = model->last->weight.grad().clone();
    world.comm().broadcast(gradient, 0);
    require_equal(gradient, model->last->weight.grad(), "averaged");
  });
}

TEST(FrozenParameters, MustChangeOnEveryRank) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    backward(*model, world.rank());
    // Of different parameters: as many on each rank.
    train(world.rank() == 0 ? model->first : model->middle, false);
    testing::expect_parts(testing::message_of<ConfigError>([&] { backward(*model, world.rank()); }),
                          {"rank 1", "first.weight", "without gradient"});
  });
}

TEST(FrozenParameters, MayNotChangeWithinAStepOfReproducibleMode) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().reproducible(true).micro_batches(4));
    backward(*model, world.rank());
    train(model->first, false);
    testing::expect_parts(testing::message_of<ConfigError>([&] { backward(*model, world.rank()); }),
                          {"between the micro-batches", "between steps", "rank"});
  });
}

}  // namespace
}  // namespace tessera
