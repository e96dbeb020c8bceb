// Each option in a case in which it changes the outcome.
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <gtest/gtest.h>

#include <optional>

#include "data_parallel/small_models.h"
#include "support/error_message.h"
#include "support/require_tensors.h"
#include "support/sum_hook.h"

namespace tessera {
namespace {

using testing::backward;
using testing::Chain;
using testing::chain_input;
using testing::require;
using testing::require_equal;

TEST(FindUnusedParameters, NamesThemWhenItIsOff) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const auto text = testing::message_of<ConfigError>([&] { backward(*model, world.rank(), true); });
    testing::expect_parts(text,
                          {"2 of the 6 parameters", "middle.weight, middle.bias", "find_unused_parameters(true)"});
  });
}

TEST(FindUnusedParameters, AveragesWhatSomeRanksUse) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().find_unused_parameters(true).bucket_bytes(64));
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      backward(*model, world.rank(), world.rank() == 1);
      Chain alone;
      backward(alone, 0);
      require(at::allclose(model->middle->weight.grad(), alone.middle->weight.grad() / 2, 1e-5, 1e-6),
              "half of what rank 0 got");
      // Nobody used it: no gradient, rather than one of zeros that weight decay would act on.
      model->zero_grad();
      backward(*model, world.rank(), true);
      require(!model->middle->weight.grad().defined(), "no gradient");
    }
  });
}

TEST(FindUnusedParameters, AveragesOnceWhatAnEarlierPassLeft) {
  run_threads(2, [](const World& world) {
    for (const bool divided_before : {false, true}) {
      for (const bool averages_first : {false, true}) {
        const auto model = std::make_shared<Chain>();
        DdpOptions options;
        options.find_unused_parameters(true).bucket_bytes(64);
        if (divided_before) options.hook(std::make_shared<testing::SumHook>());
        const auto ddp = distribute(model, world, options);
        for (int step = 0; step < 3; ++step) {
          model->zero_grad();
          {
            std::optional<NoSync> guard;
            if (!averages_first) guard.emplace(ddp);
            backward(*model, world.rank());
          }
          backward(*model, world.rank(), /*skip_middle=*/true);
          Chain alone;
          for (const int rank : {0, 1}) backward(alone, rank);
          require(at::allclose(model->middle->weight.grad(), alone.middle->weight.grad() / 2, 1e-5, 1e-6),
                  "the mean of what the first micro-batches gave");
          for (const int rank : {0, 1}) backward(alone, rank, /*skip_middle=*/true);
          require(at::allclose(model->last->weight.grad(), alone.last->weight.grad() / 2, 1e-5, 1e-6),
                  "the mean of both micro-batches");
        }
      }
    }
  });
}

TEST(GradientAsBucketView, PutsGradientsIntoOneStorage) {
  run_threads(2, [](const World& world) {
    for (const bool view : {true, false}) {
      const auto model = std::make_shared<Chain>();
      const auto ddp = distribute(model, world, DdpOptions().gradient_as_bucket_view(view));
      for (int step = 0; step < 2; ++step) backward(*model, world.rank());
      require_equal(model->first->weight.grad().is_alias_of(model->last->weight.grad()), view, "one storage");
    }
  });
}

TEST(StaticGraph, LearnsTheUnusedParametersInTheFirstPass) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().static_graph(true));
    for (int step = 0; step < 3; ++step) {
      backward(*model, world.rank(), true);
      const at::Tensor mine = model->last->weight.grad().clone();
      world.comm().broadcast(mine, 0);
      require_equal(mine, model->last->weight.grad(), "averaged");
    }
  });
}

TEST(StaticGraph, RefusesToLearnFromAPassThatIsNotAveraged) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().static_graph(true));
    const auto guard = ddp.no_sync();
    testing::expect_parts(testing::message_of<ConfigError>([&] { backward(*model, 0); }), {"outside no_sync()"});
  });
}

/// Notes, when a bucket starts, whether the first layer has its gradient yet: it is the last to get one.
class Order : public GradientHook {
 public:
  explicit Order(at::Tensor first_weight) : first_weight_(std::move(first_weight)) {}
  std::string name() const override { return "order"; }
  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    if (bucket.index == 0) started_early = !first_weight_.grad().defined();
    return exact_->start(bucket, comm);
  }
  bool started_early = false;

 private:
  at::Tensor first_weight_;
  std::shared_ptr<GradientHook> exact_ = all_reduce_hook();
};

TEST(DelayAllReduce, GivesUpTheOverlapWithBackward) {
  run_threads(2, [](const World& world) {
    for (const bool delay : {false, true}) {
      const auto model = std::make_shared<Chain>();
      const auto order = std::make_shared<Order>(model->first->weight);
      const auto ddp = distribute(
          model, world, DdpOptions().hook(order).bucket_bytes(64).first_bucket_bytes(32).delay_all_reduce(delay));
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        backward(*model, world.rank());
        require(order->started_early != delay, "when the first bucket starts");
      }
    }
  });
}

TEST(DelayAllReduce, TakesAParameterWithoutGradientAsZero) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().delay_all_reduce(true));
    backward(*model, world.rank(), world.rank() == 1);
    Chain alone;
    backward(alone, 0);
    require(at::allclose(model->middle->weight.grad(), alone.middle->weight.grad() / 2, 1e-5, 1e-6), "half");
  });
}

TEST(BucketBytes, DecidesHowManyBucketsThereAreAlsoWhileRunning) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const auto step = [&] {
      model->zero_grad();
      backward(*model, world.rank());
      return ddp.statistics().num_buckets;
    };
    require(step() == 1 && step() == 1, "all in one");
    ddp.set_bucket_bytes(48);
    const auto forward = model->forward(chain_input(0));
    testing::expect_parts(
        testing::message_of<ConfigError>([&] { ddp.set_bucket_bytes(64); }),
        {"set_bucket_bytes must be called between steps", "A forward begins when", "in a log line too"});
    forward.sum().backward();
    require(step() > 1, "several");
    require(ddp.statistics().buckets_are_zero_copy, "in the group's memory");
    testing::expect_parts(testing::message_of<ConfigError>([&] { ddp.set_bucket_bytes(0); }),
                          {"the size of buckets must be above 0"});
  });
}

TEST(BucketBytes, ThatWereSetBeforeTheFirstStepStay) {
  run_threads(2, [](const World& world) {
    Chain alone;
    for (int rank = 0; rank < 2; ++rank) backward(alone, rank);
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    ddp.set_bucket_bytes(48);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      backward(*model, world.rank());
      require(ddp.statistics().num_buckets > 1, "several, also after the first step");
      for (std::size_t i = 0; i < ddp.parameters().size(); ++i) {
        require(at::allclose(ddp.parameters()[i].grad(), alone.parameters()[i].grad() / 2, 1e-5, 1e-6),
                ddp.averaged_parameters()[i].first);
      }
    }
  });
}

TEST(Buckets, ThatAreGivenStayAndAverageAsAllOthersDo) {
  run_threads(3, [](const World& world) {
    Chain alone;
    for (int rank = 0; rank < 3; ++rank) backward(alone, rank);
    const DistributedModel::Buckets given{{5, 0}, {3}, {1, 2, 4}};
    for (const bool finds : {false, true}) {
      for (const bool is_static : {false, true}) {
        const auto model = std::make_shared<Chain>();
        const auto ddp = distribute(model, world, DdpOptions().find_unused_parameters(finds).static_graph(is_static));
        ddp.set_buckets(given);
        for (int step = 0; step < 3; ++step) {
          model->zero_grad();
          backward(*model, world.rank());
          require_equal(ddp.statistics().num_buckets, 3, "they stay");
          require_equal(ddp.buckets(), given, "they stay");
          for (std::size_t i = 0; i < ddp.parameters().size(); ++i) {
            require(at::allclose(ddp.parameters()[i].grad(), alone.parameters()[i].grad() / 3, 1e-5, 1e-6),
                    ddp.averaged_parameters()[i].first);
          }
        }
      }
    }
  });
}

TEST(Buckets, MustHoldEachParameterOnce) {
  run_threads(1, [](const World& world) {
    const auto ddp = distribute(std::make_shared<Chain>(), world);
    for (const DistributedModel::Buckets& buckets :
         {DistributedModel::Buckets{{0, 1, 2, 3, 4}}, DistributedModel::Buckets{{0, 1, 2, 3, 4, 5}, {5}},
          DistributedModel::Buckets{{0, 1, 2, 3, 4, 6}}}) {
      testing::expect_parts(testing::message_of<ConfigError>([&] { ddp.set_buckets(buckets); }),
                            {"do not hold each of the 6 trained parameters once", "rank 0"});
    }
    testing::expect_parts(testing::message_of<ConfigError>([&] { ddp.set_micro_batch(0); }),
                          {"set_micro_batch is for reproducible(true)"});
  });
}

TEST(Buckets, ThatAreGivenWithinAStepAreRefusedAndForgotten) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    for (int step = 0; step < 2; ++step) backward(*model, world.rank());
    const auto before = ddp.buckets();
    const at::Tensor loss = model->forward(at::ones({1, 4})).sum();
    testing::expect_parts(testing::message_of<ConfigError>([&] { ddp.set_buckets({{5, 0}, {3}, {1, 2, 4}}); }),
                          {"set_buckets must be called between steps"});
    loss.backward();
    backward(*model, world.rank());
    require_equal(ddp.buckets(), before, "they are as before");
  });
}

TEST(Buckets, AreThoseThatTheFirstStepTaught) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world, DdpOptions().bucket_bytes(48).first_bucket_bytes(48));
    require(ddp.buckets().empty(), "nothing was learnt yet");
    backward(*model, world.rank());
    const auto learnt = ddp.buckets();
    require(learnt.size() > 1, "several");
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : ddp.parameters()) gradients.push_back(parameter.grad().clone());
    backward(*model, world.rank());
    require_equal(ddp.buckets(), learnt, "asking is what the next forward does");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      require(at::allclose(ddp.parameters()[i].grad(), 2 * gradients[i], 1e-5, 1e-6), "and gradients are kept");
    }
  });
}

TEST(BroadcastBuffers, GivesEveryRankThoseOfRank0BeforeEachForward) {
  run_threads(2, [](const World& world) {
    for (const bool broadcast : {true, false}) {
      const auto model = std::make_shared<Chain>();
      const auto ddp = distribute(model, world, DdpOptions().broadcast_buffers(broadcast));
      for (int step = 0; step < 2; ++step) {
        model->seen.fill_(10 * step + world.rank());
        backward(*model, world.rank());
        require_equal(model->seen[0].item<float>(), static_cast<float>(10 * step + (broadcast ? 0 : world.rank())),
                      "buffers");
      }
      model->seen.fill_(world.rank() + 1);
      ddp.sync_buffers();
      require_equal(model->seen[0].item<float>(), 1, "asked for");
    }
  });
}

/// Moves what it sees into the middle before it computes with a parameter, and keeps count of it as it goes.
struct Centred : torch::nn::Module {
  Centred()
      : weight(register_parameter("weight", torch::ones({2}))), mean(register_buffer("mean", torch::zeros({2}))) {}
  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor centred = (x - mean) * (mean + 1);
    const torch::NoGradGuard no_grad;
    mean.add_(x.mean(0));
    const at::AutoGradMode grad(true);
    return centred * weight;
  }
  at::Tensor weight;
  at::Tensor mean;
};

TEST(BroadcastBuffers, ComesBeforeAModelThatComputesWithABufferFirst) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Centred>();
    const auto ddp = distribute(model, world);
    float expected = 0;  // rank 0 sees ones
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = torch::full({4, 2}, world.rank() + 1.0F);
      const at::Tensor output = model->forward(x);
      const float own = static_cast<float>(world.rank()) + 1;
      require_equal(output[0][0].item<float>(), (own - expected) * (expected + 1), "the mean is rank 0's");
      output.sum().backward();
      expected += 1;
      require_equal(model->mean[0].item<float>(), expected, "and so it is between steps");
    }
  });
}

TEST(BroadcastBuffers, LeavesAloneWhatAGraphNeeds) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Centred>();
    const auto ddp = distribute(model, world);
    const at::Tensor x = torch::ones({4, 2}).requires_grad_();
    // Multiplied with a buffer, which the graph keeps; then with a parameter, which begins the forward.
    (x * (model->mean) * model->weight).sum().backward();
    require(x.grad().defined(), "a slope");
  });
}

}  // namespace
}  // namespace tessera
