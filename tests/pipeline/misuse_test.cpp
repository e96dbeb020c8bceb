// What is refused of a model on stages.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/split_product.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/measure_layers.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "pipeline/net.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(PipelineMisuse, ReadingValuesOfAnotherStage) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return net.second(h.sum().item<double>() > 0 ? h : -h).square().mean();
      },
      "reads values that a stage of the pipeline computes");
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return net.second(h.index({h.sum(1) > 0})).square().mean();
      },
      "reads values that a stage of the pipeline computes");
}

TEST(PipelineMisuse, ABackwardInTheForward) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return net.second(h + torch::autograd::grad({h.sum()}, {h})[0]).square().mean();
      },
      "a backward pass is asked for inside the forward of a pipeline");
}

TEST(PipelineMisuse, AStepInTheForward) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto inner = [&](const Tensor& micro) { return plain_forward(*net, micro); };
    const auto step = [&] { pipe.step(batch(), 2, [&](const Tensor& micro) { return pipe.step(micro, 1, inner); }); };
    EXPECT_THAT(message_of<ConfigError>(step),
                HasSubstr("a step of a pipeline is asked for inside the forward of one"));
  });
}

TEST(PipelineMisuse, ALossThatIsNone) {
  expect_refused([](Net& net, const Tensor& x) { return net.second(net.first(x)); },
                 "the forward of a pipeline must return the loss, one number that depends on the model");
  expect_refused([](Net&, const Tensor& x) { return x.sum(); }, "that no parameter has part in");
  expect_refused([](Net& net, const Tensor& x) { return net.first(x).sum(); },
                 "no operator takes what the last ones have");
}

TEST(PipelineMisuse, WritesThatOthersDoNotSee) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        const Tensor y = net.second(h);
        h.add_(1);
        return (y + h).square().mean();
      },
      "has taken already, where the write would not be seen");
  expect_refused(
      [](Net& net, const Tensor& x) {
        Tensor h = net.first(x) * 1;
        const Tensor view = h.view({-1});
        h.add_(net.second(h));
        return (h.sum() + view.sum()).square();
      },
      "shares memory with one that a later stage has written to");
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor sum = torch::zeros({4}, at::kDouble);
        sum.add_(net.second(net.first(x)).sum(0));
        return sum.square().mean();
      },
      "to a tensor that every rank has, and the other ranks do not have the value");
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        const Tensor same = torch::dropout(h, 0.5, /*train=*/false);  // LibTorch does not say that this is h
        const Tensor y = net.second(same);
        h.add_(1);
        return (y + h.detach()).square().mean();
      },
      "has taken already, where the write would not be seen");
}

TEST(PipelineMisuse, WritesToTheModel) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.second(net.first(x));
        net.counter.add_(h.detach().sum());
        return h.square().mean();
      },
      "place it there");
  expect_refused(
      [](Net& net, const Tensor& x) {
        net.counter.add_(1);
        return (net.second(net.first(x)) * net.counter).square().mean();
      },
      "reads it when other micro-batches have written to it: cut the model elsewhere");
  expect_refused(
      [](Net& net, const Tensor& x) {
        net.table.narrow(0, 0, 1).add_(1);
        return plain_forward(net, x);
      },
      "the forward writes to a view of the buffer table");
  expect_refused(
      [](Net& net, const Tensor& x) {
        net.first->weight.detach().add_(1);
        return plain_forward(net, x);
      },
      "writes to a view of a parameter or buffer in the forward");
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor y = net.second(net.first(x));
        const torch::NoGradGuard no_grad;
        net.scale.mul_(0.5);
        return y.square().mean();
      },
      "in the forward, between the forwards and backwards of other micro-batches");
}

TEST(PipelineMisuse, StatisticsElsewhere) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor mean = torch::zeros({4}, at::kDouble);
        const Tensor variance = torch::ones({4}, at::kDouble);
        return net.second(at::batch_norm(net.first(x), {}, {}, mean, variance, true, 0.1, 1e-5, false)).square().mean();
      },
      "writes statistics to a tensor that is no buffer of the model");
  const auto reversed = [](int num_micro_batches) {
    auto schedule = make_pipeline_schedule(PipelineScheduleKind::kRoundRobin, {2, num_micro_batches});
    for (auto& operations : schedule.operations) {
      for (PipelineOperation& one : operations) one.micro_batch = num_micro_batches - 1 - one.micro_batch;
    }
    return schedule;
  };
  expect_refused([](Net& net, const Tensor& x) { return net.norm(net.second(net.first(x))).square().mean(); },
                 "the forward writes to buffers, and the schedule takes the micro-batches of stage",
                 two_stages().own_schedule(reversed));
}

TEST(PipelineMisuse, TensorsThatAreNoneOfTheModels) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor own = torch::ones({4}, at::kDouble).requires_grad_();
        return net.second(net.first(x) * own).square().mean();
      },
      "takes a tensor that requires a gradient and is none of the model's");
  expect_refused([](Net& net, const Tensor&) { return net.second->weight.sum() + net.first->weight.sum(); },
                 "the loss is computed from parameters alone, and not from the batch");
}

/// Draws in backward.
struct Noisy : torch::autograd::Function<Noisy> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/, const Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] + torch::rand_like(gradients[0])};
  }
};

TEST(PipelineMisuse, RandomNumbersThatOthersCannotDraw) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return net.second(h + torch::poisson(h.detach().square())).square().mean();
      },
      "draws random numbers by the values of its argument, or from a generator of its own");
  const std::string message = message_of<ConfigError>([] {
    run_threads(1, [](const World& world) {
      const auto net = std::make_shared<Net>();
      const Pipeline pipe = pipeline(net, world);
      pipe.step(batch(), 1, [&](const Tensor& micro) { return Noisy::apply(plain_forward(*net, micro)); });
    });
  });
  EXPECT_THAT(message, HasSubstr("a backward pass draws random numbers, as a custom function may do"));
}

TEST(PipelineMisuse, HooksThatWouldSeeParts) {
  const Forward forward = [](Net& net, const Tensor& x) {
    return net.second(net.first(x)).matmul(net.first->weight).square().mean();
  };
  const std::string message = message_of<ConfigError>([&] {
    run_threads(2, [&](const World& world) {
      const auto net = std::make_shared<Net>();
      net->first->weight.register_hook([](const Tensor& gradient) { return gradient.clamp(-1, 1); });
      const Pipeline pipe = pipeline(net, world, two_stages());
      pipe.step(batch(), 2, [&](const Tensor& micro) { return forward(*net, micro); });
    });
  });
  EXPECT_THAT(message,
              HasSubstr("there is a hook on first.weight, of which several stages compute parts of the gradient"));
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor weight = net.first->weight * 2;
        weight.register_hook([](const Tensor& gradient) { return gradient.clamp(-1, 1); });
        return net.second(at::linear(x, weight)).square().mean();
      },
      "a hook is put on what is computed from parameters alone");
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor weight = Doubled::apply(net.first->weight);
        return net.second(at::linear(x, weight)).matmul(weight).square().mean();
      },
      "alone is used on several stages, and its backward would see parts of a gradient");
}

TEST(PipelineMisuse, TensorsThatShareMemory) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    net->second->weight.set_data(net->first->weight.data());
    const auto cut = [&] { pipeline(net, world, two_stages()); };
    EXPECT_THAT(message_of<ConfigError>(cut), HasSubstr("of stage 1 shares its memory with"));
  });
}

TEST(PipelineMisuse, AModelWhosePipelineIsGone) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    {
      const Pipeline pipe = pipeline(net, world, two_stages());
    }
    const auto use = [&] { (world.rank() == 0 ? net->second : net->first)->weight.add(1); };
    EXPECT_THAT(message_of<ConfigError>(use), HasSubstr("takes a tensor of a pipeline that is gone"));
  });
}

TEST(PipelineMisuse, WritesToTheBatch) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        Tensor(x).mul_(2);
        return plain_forward(net, x);
      },
      "the forward writes to its micro-batch, and runs several times for each");
}

TEST(PipelineMisuse, AForwardThatChanges) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        const bool is_positive = x[0].sum().item<double>() > 0;
        return net.second(is_positive ? h : torch::tanh(h)).square().mean();
      },
      "the forward runs other operators than the one that was tried without bytes");
  thread_local int calls = 0;
  calls = 0;
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor loss = plain_forward(net, x);
        if (calls++ > 0) net.counter.add_(1);
        return loss;
      },
      "and did not when it was tried without bytes");
}

TEST(PipelineMisuse, ValuesThatAreKept) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        thread_local Tensor kept;
        Tensor h = net.first(x);
        if (kept.defined()) h = h + kept;
        kept = h.detach();
        return net.second(h).square().mean();
      },
      "takes a value that the forward of another micro-batch left");
  run_threads(2, [](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    Tensor kept;
    pipe.step(batch(), 2, [&](const Tensor& micro) {
      kept = torch::tanh(net->first(micro));
      return net->second(kept * 2).square().mean();
    });
    if (world.rank() == 0) {
      EXPECT_EQ((kept + 0).sizes(), at::IntArrayRef({2, 4}));  // it is here, and an ordinary tensor for who asks
      return;
    }
    const auto read = [&] { kept.neg().add(1); };
    EXPECT_THAT(message_of<ConfigError>(read), HasSubstr("takes a value of the forward, which lies on stage 0"));
  });
}

/// Its forward reads one argument, its backward gives a gradient to both.
struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/, const Tensor& x, const Tensor& /*other*/) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], gradients[0]};
  }
};

TEST(PipelineMisuse, GradientsForWhatWasNotRead) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return StraightThrough::apply(net.second(h.detach()), torch::tanh(h)).square().mean();
      },
      "a gradient reaches a value of another stage that no operator of this one has taken");
  expect_refused(
      [](Net& net, const Tensor& x) {
        return StraightThrough::apply(net.second(net.first(x)), net.first->bias).square().mean();
      },
      "a custom function gives a gradient to a parameter that its forward does not use");
}

TEST(PipelineMisuse, TensorsThatAreEqualOnTheRankThatHasThem) {
  expect_refused(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        const Tensor y = net.second(h);
        return (y.equal(y * 1) ? y : y * 2).square().mean();
      },
      "They are, and the ranks that have only their shape have gone on as if not");
}

TEST(PipelineMisuse, TwoPipelinesInOneOperator) {
  run_threads(2, [&](const World& world) {
    const auto one = std::make_shared<Net>();
    const auto other = std::make_shared<Net>();
    const Pipeline pipe = pipeline(one, world, two_stages());
    const Pipeline second = pipeline(other, world, two_stages());
    const auto step = [&] {
      pipe.step(batch(), 2, [&](const Tensor& micro) {
        return (one->second(one->first(micro)) * (world.rank() == 0 ? other->second : other->first)->bias)
            .square()
            .mean();
      });
    };
    EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("takes a tensor of another pipeline"));
  });
}

TEST(PipelineMisuse, RanksThatDiffer) {
  const auto refusal_of = [](const std::function<void(const World&, Net&, const Pipeline&)>& step) {
    return message_of<ConfigError>([&] {
      run_threads(2, [&](const World& world) {
        const auto net = std::make_shared<Net>();
        const Pipeline pipe = pipeline(net, world, two_stages());
        step(world, *net, pipe);
      });
    });
  };
  EXPECT_THAT(refusal_of([](const World& world, Net& net, const Pipeline& pipe) {
                pipe.step(batch(4, world.rank()), 2, [&](const Tensor& micro) { return plain_forward(net, micro); });
              }),
              HasSubstr("of a pipeline differ in the values of the batch"));
  EXPECT_THAT(refusal_of([](const World& world, Net& net, const Pipeline& pipe) {
                pipe.step(batch(), 1 + world.rank(), [&](const Tensor& micro) { return plain_forward(net, micro); });
              }),
              HasSubstr("differ in the number of micro-batches"));
  EXPECT_THAT(refusal_of([](const World& world, Net& net, const Pipeline& pipe) {
                pipe.step(
                    batch(), 2, [&](const Tensor& micro) { return plain_forward(net, micro); },
                    [&](const Tensor&) { return 1 + world.rank(); });
              }),
              HasSubstr("differ in the weights of the losses"));
  EXPECT_THAT(refusal_of([](const World& world, Net& net, const Pipeline& pipe) {
                pipe.step(batch(), 2, [&](const Tensor& micro) {
                  const Tensor h = net.first(micro);
                  return net.second(world.rank() == 0 ? h : torch::tanh(h)).square().mean();
                });
              }),
              HasSubstr("differ in the operators of the forward"));
  EXPECT_THAT(refusal_of([](const World&, Net& net, const Pipeline& pipe) {
                pipe.step(
                    batch(), 2, [&](const Tensor& micro) { return plain_forward(net, micro); },
                    [](const Tensor&) { return -1; });
              }),
              HasSubstr("the weight of a micro-batch must be 0 or more"));
  EXPECT_THAT(refusal_of([](const World&, Net& net, const Pipeline& pipe) {
                pipe.step(batch(), 5, [&](const Tensor& micro) { return plain_forward(net, micro); });
              }),
              HasSubstr("a batch of 4 samples cannot be divided into 5 micro-batches"));
}

TEST(PipelineMisuse, AStepInsideGatherOrAfterAFailure) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto step = [&] { pipe.step(batch(), 2, [&](const Tensor& micro) { return plain_forward(*net, micro); }); };
    {
      const auto whole = pipe.gather();
      EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("while gather() holds its parameters whole"));
    }
  });
  run_threads(1, [](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world);
    int calls = 0;
    const auto step = [&] {
      pipe.step(batch(), 1, [&](const Tensor& micro) {
        if (++calls == 2) throw std::runtime_error("mine");  // after it was tried without bytes
        return plain_forward(*net, micro);
      });
    };
    EXPECT_THROW(step(), std::runtime_error);
    EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("a step of this pipeline has failed before"));
  });
}

TEST(PipelineMisuse, CutsThatDoNotFit) {
  const auto refusal_of = [](const PipelineOptions& options) {
    return message_of<ConfigError>(
        [&] { run_threads(2, [&](const World& world) { pipeline(std::make_shared<Net>(), world, options); }); });
  };
  const auto options = [] { return PipelineOptions(); };
  EXPECT_THAT(refusal_of(options().split({"third"})), HasSubstr("the cut of the pipeline does not fit the model: "));
  EXPECT_THAT(refusal_of(options().split({"third"})), HasSubstr("there is no module 'third'"));
  EXPECT_THAT(refusal_of(options().split({"first", "second"})), HasSubstr("so split must name 1 modules, found 2"));
  EXPECT_THAT(refusal_of(options().split({"second", "first", "norm"}).schedule("zb-v")),
              HasSubstr("does not come after what the stage before it begins with"));
  EXPECT_THAT(refusal_of(options().split({"second"}).layers_per_stage({1, 2})),
              HasSubstr("split and layers_per_stage are both given"));
  EXPECT_THAT(refusal_of(options().layers_per_stage({2, 3})), HasSubstr("must have 2 numbers above 0 whose sum is"));
  EXPECT_THAT(refusal_of(options().layer_costs({1, 2})),
              ::testing::AllOf(HasSubstr("layer_costs has "), HasSubstr("2 numbers for 4 layers")));
  EXPECT_THAT(refusal_of(options().layer_costs({1, 2}).layers_per_stage({1, 2})),
              HasSubstr("layer_costs and layers_per_stage are both given"));
  EXPECT_THAT(refusal_of(options().layer_costs({1, 2}).split({"second"})),
              HasSubstr("split and layer_costs are both given"));
  EXPECT_THAT(refusal_of(options().schedule("interleaved").num_chunks(4)),
              HasSubstr("layers for a pipeline of 8 stages"));
  EXPECT_THAT(refusal_of(options().place({"second"})), HasSubstr("place must have the form"));
  EXPECT_THAT(refusal_of(options().place({"secnd: 0"})), HasSubstr("which has no parameters and no buffers"));
  const auto models_differ = [] {
    run_threads(2, [&](const World& world) {
      pipeline(std::make_shared<Net>(), world, PipelineOptions().schedule(world.rank() == 0 ? "gpipe" : "1f1b"));
    });
  };
  EXPECT_THAT(message_of<ConfigError>(models_differ), HasSubstr("do not cut the same model into stages"));
  EXPECT_THAT(refusal_of(options().schedule("zigzag")), HasSubstr("there is no pipeline schedule \"zigzag\""));
  EXPECT_THAT(refusal_of(options().own_schedule(
                  [](int num) { return make_pipeline_schedule(PipelineScheduleKind::kGPipe, {3, num}); })),
              HasSubstr("the schedule is for 3 ranks, and the axis has 2"));
  EXPECT_THAT(refusal_of(options().own_schedule([](int num) {
                auto schedule = make_pipeline_schedule(PipelineScheduleKind::kGPipe, {2, num});
                schedule.operations[0].pop_back();
                return schedule;
              })),
              HasSubstr("the schedule cannot work"));
}

TEST(PipelineMisuse, OtherWaysToShareItAfterwards) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto copied = [&] { const auto copies = distribute(net, world); };
    EXPECT_THAT(message_of<ConfigError>(copied), HasSubstr("do not distribute the same model"));
    const auto sharded = [&] { const auto shards = fully_shard(net, world); };
    EXPECT_THAT(message_of<ConfigError>(sharded), HasSubstr("do not distribute the same model"));
    const auto again = [&] { const auto stages = pipeline(net, world, two_stages()); };
    EXPECT_THAT(message_of<ConfigError>(again), HasSubstr("the model is on the stages of a pipeline already"));
    const auto cut = [&] { const auto parts = tensor_parallel(net, world, {{"first", split_columns()}}); };
    EXPECT_THAT(message_of<ConfigError>(cut), HasSubstr("is cut already: call tensor_parallel() once for a model"));
  });
}

TEST(PipelineMisuse, ModelsWithoutLayersToMeasure) {
  const World world = fake_world(0, 1);
  const auto loss = [](const Tensor& micro) { return micro.sum(); };
  const auto none = [&] { measure_layers(std::make_shared<Net>(), world, batch(), loss); };
  EXPECT_THAT(message_of<ConfigError>(none), HasSubstr("the model has no layers to measure"));
  const auto null = [&] { measure_layers(std::shared_ptr<nn::Module>(), world, batch(), loss); };
  EXPECT_THAT(message_of<ConfigError>(null), HasSubstr("there is no model to measure: the pointer is null"));
}

TEST(PipelineMisuse, SchedulesAndCutsThatDifferBetweenRanks) {
  run_threads(2, [&](const World& world) {
    const bool is_first = world.rank() == 0;
    const auto cut = [&] {
      pipeline(std::make_shared<Net>(), world, PipelineOptions().split({is_first ? "second" : "norm"}));
    };
    EXPECT_THAT(message_of<ConfigError>(cut), HasSubstr("do not cut the same model into stages"));
    const auto net = std::make_shared<Net>();
    const auto kind = is_first ? PipelineScheduleKind::kGPipe : PipelineScheduleKind::kOneForwardOneBackward;
    const Pipeline pipe = pipeline(net, world, PipelineOptions().split({"second"}).own_schedule([kind](int num) {
      return make_pipeline_schedule(kind, {2, num});
    }));
    const auto step = [&] { pipe.step(batch(), 4, [&](const Tensor& micro) { return plain_forward(*net, micro); }); };
    EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("the list of operations"));
  });
}

TEST(PipelineMisuse, AModelThatIsShared) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const auto copies = distribute(net, world);
    const auto cut = [&] { pipeline(net, world, two_stages()); };
    EXPECT_THAT(message_of<ConfigError>(cut), HasSubstr("the model is shared by ranks already"));
    const auto null = [&] { pipeline(std::shared_ptr<nn::Module>(), world); };
    EXPECT_THAT(message_of<ConfigError>(null), HasSubstr("there is no model to cut into stages"));
  });
}

}  // namespace
}  // namespace tessera::testing
