#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/distributed_data_parallel.h>
#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/shard/global_slice.h>

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>
#include <utility>

#include "data_parallel/small_models.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

namespace tessera {
namespace {

using testing::backward;
using testing::Chain;
using testing::chain_input;
using testing::require;
using testing::require_equal;

/// The gradient of the last layer's weight for one rank alone, or averaged over the first `num_ranks`.
at::Tensor gradient_of(int rank) {
  Chain alone;
  alone.forward(chain_input(rank)).sum().backward();
  return alone.last->weight.grad();
}

at::Tensor average_of(int num_ranks) {
  at::Tensor sum = gradient_of(0);
  for (int rank = 1; rank < num_ranks; ++rank) sum = sum + gradient_of(rank);
  return sum / num_ranks;
}

bool close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-5, 1e-6); }

TEST(Distribute, AveragesTheGradientsOfAModelThatWasNotModified) {
  run_threads(3, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      backward(*model, world.rank());
      require(close(model->last->weight.grad(), average_of(3)), "not the average");
    }
    require_equal(ddp.statistics().num_synchronised, 3, "three passes were averaged");
    require(ddp.parameters().size() == 6 && ddp.averaged_parameters().front().first == "first.weight",
            "the parameters");
  });
}

TEST(Distribute, TakesAxesCommunicatorsAndHolders) {
  run_threads(4, [](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    torch::nn::Linear layer(2, 2);
    const auto by_axis = distribute(layer, mesh["dp"]);
    layer(at::full({1, 2}, static_cast<float>(world.rank()))).sum().backward();
    const float expected = mesh["tp"].coordinate() == 0 ? 1.0F : 2.0F;  // of ranks 0 and 2, or 1 and 3
    require_equal(layer->weight.grad()[0][0].item<float>(), expected, "averaged along the axis");
  });
}

TEST(Distribute, GivesEveryRankTheWeightsOfRank0) {
  run_threads(2, [](const World& world) {
    for (const bool init_sync : {true, false}) {
      const auto model = std::make_shared<Chain>();
      model->fill(world.rank());
      const auto ddp = distribute(model, world, DdpOptions().init_sync(init_sync));
      Chain of_rank_0;
      of_rank_0.fill(0);
      const bool same = at::equal(model->first->weight, of_rank_0.first->weight);
      require_equal(same, (init_sync || world.rank() == 0), "init_sync");
    }
  });
}

TEST(Distribute, NamesTheFirstParameterThatDiffersBetweenRanks) {
  run_threads(3, [](const World& world) {
    const auto expect_text = [&](const torch::nn::Sequential& model, std::initializer_list<std::string_view> parts) {
      std::string text;
      try {
        const auto ddp = distribute(model, world);
      } catch (const ConfigError& error) {
        text = error.what();
      }
      for (const auto part : parts) require(text.find(part) != std::string::npos, "\"" + text + "\"");
      require(text.find("do not distribute the same model") != std::string::npos, "\"" + text + "\"");
    };
    const bool other = world.rank() == 2;
    expect_text(torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Linear(2, other ? 5 : 3)),
                {"rank 2 has \"1.weight: Float [5, 2]\" where rank 0 has \"1.weight: Float [3, 2]\""});
    torch::nn::Sequential cut(torch::nn::Linear(2, 2));
    set_global_slice(cut->parameters()[0], Slice::whole({2, 6}).narrow(1, {other ? 4 : 0, 2}));
    expect_text(cut, {"0.weight: Float [2, 2], [0:2, 4:6] of [2, 6]", "[0:2, 0:2] of [2, 6]"});
    torch::nn::Sequential longer(torch::nn::Linear(2, 2));
    if (other) longer->push_back(torch::nn::Linear(2, 2));
    expect_text(longer, {"only rank 2 has \"1.weight: Float [2, 2]\""});
    torch::nn::Sequential frozen(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    if (other) frozen->parameters().back().set_requires_grad(false);
    expect_text(frozen, {"1.bias: Float [2], without gradient"});
    torch::nn::Sequential strided(torch::nn::Conv2d(2, 3, 3));
    const at::Tensor weight = strided->parameters()[0];
    if (other) weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    expect_text(strided, {"strides"});
  });
}

TEST(Distribute, NamesTheOptionThatDiffersAndTheRankThatRefuses) {
  run_threads(2, [](const World& world) {
    const auto text_of = [&](const DdpOptions& options) {
      return testing::message_of<ConfigError>(
          [&] { std::ignore = distribute(std::make_shared<Chain>(), world, options); });
    };
    testing::expect_parts(text_of(DdpOptions().compression(world.rank() == 1 ? "fp16" : "none")),
                          {"rank 1 has \"option compression = fp16\" where rank 0 has \"option compression = none\""});
    testing::expect_parts(text_of(DdpOptions().bucket_bytes(world.rank() == 1 ? 0 : 10)),
                          {"rank 1", "bucket_bytes is 0"});
  });
}

TEST(Distribute, SeesTheForwardOfWeightsThatWereLoaded) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    for (int step = 0; step < 3; ++step) {
      const torch::NoGradGuard no_grad;
      // What torch::load does: other storages for the same parameters. Autograd then drops their hooks.
      for (auto& parameter : model->parameters()) parameter.set_(parameter.clone());
      const torch::AutoGradMode grad(true);
      model->zero_grad();
      backward(*model, world.rank());
      require(close(model->last->weight.grad(), average_of(2)), "the average");
    }
  });
}

void cast_to_and_fro(torch::nn::Module& model) {
  model.to(at::kDouble);
  model.to(at::kFloat);
}

TEST(Distribute, SeesTheForwardAfterACast) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    for (int step = 0; step < 3; ++step) {
      // With a graph, so that it begins a forward; and then parameters have other memory and no hooks.
      cast_to_and_fro(*model);
      model->zero_grad();
      backward(*model, world.rank());
      require(close(model->last->weight.grad(), average_of(2)), "the average");
    }
  });
}

TEST(Distribute, RefusesOtherMemoryBetweenForwardAndBackward) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const at::Tensor loss = model->forward(chain_input(world.rank())).sum();
    cast_to_and_fro(*model);
    testing::expect_parts(
        testing::message_of<ConfigError>([&] { loss.backward(); }),
        {"was given other memory between a forward and its backward", "rank", "run the forward again"});
  });
}

TEST(Distribute, TakesALookAtDetachedParametersForNoForward) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    backward(*model, world.rank());
    // On one rank, followed by a collective of the program's own.
    if (world.rank() == 0) {
      EXPECT_GT(model->last->weight.detach().norm().item<float>(), 0);
      model->first->weight.data().mul_(1);
    }
    world.comm().barrier();
    model->zero_grad();
    backward(*model, world.rank());
    require(close(model->last->weight.grad(), average_of(2)), "the average");
  });
}

TEST(Distribute, GoesOnAfterAnErrorInAForward) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().reproducible(true).micro_batches(1));
    at::set_num_threads(2);
    for (int attempt = 0; attempt < 2; ++attempt) EXPECT_THROW(backward(*model, 0), ConfigError);
    at::set_num_threads(1);
    model->zero_grad();
    backward(*model, 0);
  });
}

TEST(Distribute, RefusesOneHookForTwoModels) {
  run_threads(1, [](const World& world) {
    const auto options = DdpOptions().hook(all_reduce_hook());
    const auto first = distribute(std::make_shared<Chain>(), world, options);
    testing::expect_parts(
        testing::message_of<ConfigError>([&] { std::ignore = distribute(std::make_shared<Chain>(), world, options); }),
        {"the gradient hook \"none\" serves a model already"});
  });
}

TEST(Distribute, RefusesAModelWithNothingToTrainOrThatRenormalisesItself) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear frozen(2, 2);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    testing::expect_parts(testing::message_of<ConfigError>([&] { std::ignore = distribute(frozen, world); }),
                          {"has no parameter that requires a gradient"});
    torch::nn::Sequential table(torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).max_norm(1.0)));
    testing::expect_parts(testing::message_of<ConfigError>([&] { std::ignore = distribute(table, world); }),
                          {"embedding \"0\"", "max_norm", "drift apart"});
  });
}

TEST(Distribute, RefusesANullModel) {
  const World world = fake_world(0, 1);
  testing::expect_parts(
      testing::message_of<ConfigError>([&] { std::ignore = distribute(std::shared_ptr<Chain>(), world); }),
      {"there is no model to distribute"});
}

std::string refusal_of(const DdpOptions& options) {
  const World world = fake_world(0, 1);
  return testing::message_of<ConfigError>([&] { std::ignore = distribute(std::make_shared<Chain>(), world, options); });
}

TEST(Distribute, RefusesOptionsThatCannotBeMetAllAtOnce) {
  const auto contradicting = DdpOptions()
                                 .bucket_bytes(0)
                                 .first_bucket_bytes(-1)
                                 .delay_all_reduce(true)
                                 .find_unused_parameters(true)
                                 .static_graph(true)
                                 .hook(all_reduce_hook())
                                 .compression("fp16")
                                 .micro_batches(3)
                                 .num_threads(2);
  testing::expect_parts(refusal_of(contradicting),
                        {"the options of data parallelism cannot be met", "  bucket_bytes is 0; it must be above 0",
                         "first_bucket_bytes is -1; it must be above 0", "leave find_unused_parameters off",
                         "static_graph is for the overlap that delay_all_reduce gives up",
                         "a hook of one's own and compression \"fp16\" exclude each other",
                         "micro_batches is for reproducible(true) only", "num_threads is for reproducible(true) only"});
}

TEST(Distribute, RefusesOptionsThatReproducibleModeHasNoUseFor) {
  const auto reproducible = DdpOptions().reproducible(true).micro_batches(1);
  testing::expect_parts(refusal_of(DdpOptions(reproducible).num_threads(0)), {"num_threads must be at least 1"});
  testing::expect_parts(refusal_of(DdpOptions(reproducible).compression("fp16")),
                        {"it takes no hook and no compression"});
  testing::expect_parts(refusal_of(DdpOptions(reproducible).static_graph(true)),
                        {"steer buckets, which reproducible mode does not use"});
}

TEST(NoSync, AddsGradientsUpUntilTheFirstPassAfterIt) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      {
        const auto guard = ddp.no_sync();
        backward(*model, world.rank());
        require(close(model->last->weight.grad(), gradient_of(world.rank())), "local");
      }
      backward(*model, world.rank());
      require(close(model->last->weight.grad(), 2 * average_of(2)), "both passes");
    }
    require_equal(ddp.statistics().num_unsynchronised, 2, "two passes were not averaged");
  });
}

TEST(NoSync, CountsWhereTheBackwardRuns) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const auto output = model->forward(chain_input(world.rank()));
    {
      const auto guard = ddp.no_sync();
      output.sum().backward();
    }
    require(close(model->last->weight.grad(), gradient_of(world.rank())), "the forward was outside");
    model->zero_grad();
    at::Tensor loss;
    {
      const auto guard = ddp.no_sync();
      loss = model->forward(chain_input(world.rank())).sum();
    }
    loss.backward();
    require(close(model->last->weight.grad(), average_of(2)), "the forward was inside");
  });
}

TEST(Distribute, LetsOneRankEvaluateAlone) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    backward(*model, world.rank());
    if (world.rank() == 0) {
      const torch::NoGradGuard no_grad;
      model->forward(chain_input(0));
    }
    model->zero_grad();
    backward(*model, world.rank());
    require(close(model->last->weight.grad(), average_of(2)), "the average");
  });
}

TEST(Distribute, ServesSeveralModelsAtATime) {
  run_threads(2, [](const World& world) {
    const auto generator = std::make_shared<Chain>();
    torch::nn::Linear critic(2, 1);
    const auto first = distribute(generator, world);
    const auto second = distribute(critic, world);
    for (int step = 0; step < 3; ++step) {
      generator->zero_grad();
      critic->zero_grad();
      // One backward through both, then one through the critic alone.
      critic(generator->forward(chain_input(world.rank()))).sum().backward();
      const at::Tensor mine = generator->first->weight.grad().clone();
      world.comm().broadcast(mine, 0);
      require_equal(mine, generator->first->weight.grad(), "the same on both ranks");
      critic(at::full({1, 2}, static_cast<float>(world.rank()))).sum().backward();
    }
    require_equal(second.statistics().num_synchronised, 6, "passes of the second");
    require_equal(first.statistics().num_synchronised, 3, "passes of the first");
  });
}

TEST(Distribute, WorksWithBothKindsOfZeroGrad) {
  run_threads(2, [](const World& world) {
    for (const bool set_to_none : {true, false}) {
      const auto model = std::make_shared<Chain>();
      const auto ddp = distribute(model, world);
      torch::optim::SGD optimizer(model->parameters(), 0.0);
      for (int step = 0; step < 3; ++step) {
        // Between forward and backward too: the buckets may just have been arranged anew.
        const auto loss = model->forward(chain_input(world.rank())).sum();
        optimizer.zero_grad(set_to_none);
        loss.backward();
        optimizer.step();
        require(close(model->last->weight.grad(), average_of(2)), "the average");
      }
    }
  });
}

TEST(Distribute, AveragesWhateverForwardABackwardBelongsTo) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto early = model->forward(chain_input(world.rank())).sum();
    const auto ddp = distribute(model, world, DdpOptions().init_sync(false));
    early.backward();
    require(close(model->last->weight.grad(), average_of(2)), "a forward before distribute()");
    const auto loss = model->forward(chain_input(world.rank())).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    require(close(model->last->weight.grad(), 3 * average_of(2)), "two backwards of one forward");
  });
}

TEST(Distribute, RefusesModelsWithoutValues) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    model->middle->register_parameter("far", at::zeros({2}, at::kMeta));
    testing::expect_parts(testing::message_of<ConfigError>([&] { std::ignore = distribute(model, world); }),
                          {"middle.far is on meta", "no values that ranks could share"});
  });
}

TEST(Distribute, RefusesABackwardOnAnotherThread) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const auto loss = model->forward(chain_input(0)).sum();
    std::string text;
    std::thread([&] { text = testing::message_of<ConfigError>([&] { loss.backward(); }); }).join();
    testing::expect_parts(text, {"runs on another thread than distribute()", "rank 0", "under NoGradGuard"});
  });
}

TEST(Distribute, RefusesABackwardInsideAnother) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    at::Tensor inner = model->forward(chain_input(0)).sum();
    const auto loss = model->forward(chain_input(0)).sum();
    model->first->weight.register_hook([&inner](const at::Tensor& gradient) {
      if (inner.defined()) std::exchange(inner, at::Tensor()).backward();
      return gradient;
    });
    testing::expect_parts(testing::message_of<ConfigError>([&] { loss.backward(); }),
                          {"a backward pass began inside another one", "rank 0", "tessera::recompute()"});
  });
}

TEST(Distribute, RefusesOtherBucketsInsideABackward) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    model->first->weight.register_hook([&ddp](const at::Tensor& gradient) {
      ddp.set_bucket_bytes(16);
      return gradient;
    });
    const auto loss = model->forward(chain_input(0)).sum();
    testing::expect_parts(testing::message_of<ConfigError>([&] { loss.backward(); }),
                          {"set_bucket_bytes must be called between steps", "A backward pass is under way"});
  });
}

TEST(Distribute, GoesOnAfterABackwardThatFailed) {
  for (const DdpOptions& options :
       {DdpOptions(), DdpOptions().find_unused_parameters(true), DdpOptions().static_graph(true),
        DdpOptions().gradient_as_bucket_view(false), DdpOptions().bucket_bytes(16)}) {
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<Chain>();
      const auto ddp = distribute(model, world, options);
      bool fails = true;
      // After the last layer's gradients, which begin the pass.
      model->first->weight.register_hook([&fails](const at::Tensor& gradient) {
        if (fails) throw std::runtime_error("broken");
        return gradient;
      });
      for (int times = 0; times < 2; ++times) {
        const auto loss = model->forward(chain_input(world.rank())).sum();
        const auto other = model->forward(chain_input(world.rank())).sum();
        fails = true;
        EXPECT_THROW(loss.backward(), std::runtime_error);
        fails = false;
        require(!model->last->weight.grad().defined(), "what the pass left is of no use");
        std::ignore = ddp.buckets();
        other.backward();
        require(close(model->last->weight.grad(), average_of(2)), "the average of a forward that ran before");
        model->zero_grad();
        backward(*model, world.rank());
        require(close(model->last->weight.grad(), average_of(2)), "the average of the next");
        model->zero_grad();
      }
    });
  }
}

TEST(Distribute, FollowsParametersThatWereFrozenAfterABackwardThatFailed) {
  for (const bool asks_for_buckets : {false, true}) {
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<Chain>();
      const auto ddp = distribute(model, world);
      bool fails = true;
      model->first->weight.register_hook([&fails](const at::Tensor& gradient) {
        if (fails) throw std::runtime_error("broken");
        return gradient;
      });
      EXPECT_THROW(backward(*model, world.rank()), std::runtime_error);
      fails = false;
      model->middle->weight.requires_grad_(false);
      if (asks_for_buckets) std::ignore = ddp.buckets();
      backward(*model, world.rank());
      require(close(model->last->weight.grad(), average_of(2)), "the average");
      require(!model->middle->weight.grad().defined(), "frozen");
    });
  }
}

TEST(Distribute, StopsWhenTheHandleEnds) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    {
      const auto ddp = distribute(model, world);
    }
    backward(*model, world.rank());
    require(close(model->last->weight.grad(), gradient_of(world.rank())), "local again");
  });
}

TEST(DistributedDataParallel, WrapsAModelWithoutListeningToOperators) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    DistributedDataParallel<Chain> ddp(model, world);
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp(chain_input(world.rank()), false).sum().backward();
      require(close(ddp.module().last->weight.grad(), average_of(2)), "the average");
    }
    ddp->zero_grad();
    backward(*model, world.rank());
    require(close(ddp.module().last->weight.grad(), average_of(2)), "also of a forward that was not the wrapper's");
  });
}

}  // namespace
}  // namespace tessera
