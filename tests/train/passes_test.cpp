// One table of what programs do with forwards and backwards, for every way to share a model: each gives what one
// process gives, or is refused where the table says so.
#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/optim/adamw.h>
#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>

#include "support/require.h"
#include "train/shared_net.h"

namespace tessera::testing {
namespace {

constexpr int kNumRanks = 4;
constexpr std::int64_t kSamples = 3;  // of a micro-batch

/// One rank's part of a training run, or all parts of it one after the other in one process.
class PassRun {
 public:
  PassRun(std::shared_ptr<SharedNet> its_net, ParallelModel its_model, std::optional<int> rank)
      : net(std::move(its_net)),
        model(std::move(its_model)),
        rank_(rank),
        optimizer_(model.parameters(), torch::optim::AdamWOptions(0.05)) {}

  /// What every rank does with its own part of a batch.
  void for_each_part(const std::function<void(int part)>& body) const {
    for (int part = 0; part < kNumRanks; ++part) {
      if (!rank_ || *rank_ == part) body(part);
    }
  }
  at::Tensor loss(int batch, int part, bool uses_side = true) const {
    const at::Tensor x = at::sin(at::arange(kSamples * kSharedNetInputs, at::kDouble) * 0.7 + 3 * batch + 0.1 * part);
    const at::Tensor loss = net->forward(x.view({kSamples, kSharedNetInputs}), uses_side).square().mean();
    return rank_ ? loss : loss / kNumRanks;
  }
  /// A step with the gradients that are there.
  void step() {
    norms.push_back(clip_grad_norm(model, 0.3));
    optimizer_.step();
    optimizer_.zero_grad();
  }
  void plain_step(int batch) {
    for_each_part([&](int part) { loss(batch, part).backward(); });
    step();
  }
  void zero_grad() { optimizer_.zero_grad(); }
  bool is_shared() const { return rank_.has_value(); }

  std::shared_ptr<SharedNet> net;
  ParallelModel model;
  std::vector<double> norms;

 private:
  std::optional<int> rank_;
  torch::optim::AdamW optimizer_;
};

struct Case {
  std::string name;
  std::function<void(PassRun& run)> play;
  /// Words of the refusal that a way answers with; empty: it gives what one process gives.
  std::function<std::string(const Way& way)> refusal = [](const Way&) { return std::string(); };
};

void fail_in_backward(PassRun& run) {
  run.net->throws_in_backward = true;
  run.for_each_part([&](int part) {
    const at::Tensor loss = run.loss(0, part);
    EXPECT_THROW(loss.backward(), std::runtime_error);
  });
  run.net->throws_in_backward = false;
  run.zero_grad();
}

std::vector<Case> all_cases() {
  using Order = std::vector<int>;
  const auto apart = [](const Order& order) {
    return [order](PassRun& run) {
      run.for_each_part([&](int part) {
        const std::vector<at::Tensor> losses{run.loss(0, part), run.loss(1, part), run.loss(2, part)};
        for (const int index : order) losses[static_cast<std::size_t>(index)].backward();
      });
      run.step();
    };
  };
  const auto accumulate = [](bool guarded) {
    return [guarded](PassRun& run) {
      for (int batch = 0; batch < 3; ++batch) {
        std::optional<NoSync> guard;
        if (guarded && batch < 2) guard.emplace(run.model);
        run.for_each_part([&](int part) { run.loss(batch, part).backward(); });
      }
      run.step();
    };
  };
  std::vector<Case> cases;
  cases.push_back({"F B", [](PassRun& run) { run.plain_step(0); }});
  cases.push_back({"F F F B B B", apart({0, 1, 2})});
  cases.push_back({"F F F, then B B B in reverse", apart({2, 1, 0})});
  cases.push_back({"F F F B B B in another order", apart({1, 2, 0})});
  cases.push_back({"two backwards of one forward", [](PassRun& run) {
                     run.for_each_part([&](int part) {
                       const at::Tensor loss = run.loss(0, part);
                       loss.backward({}, /*retain_graph=*/true);
                       loss.backward();
                     });
                     run.step();
                   }});
  cases.push_back({"a forward that throws", [](PassRun& run) {
                     run.net->throws = true;
                     run.for_each_part([&](int part) { EXPECT_THROW(run.loss(0, part), std::runtime_error); });
                     run.net->throws = false;
                     run.plain_step(1);
                   }});
  cases.push_back({"a backward that throws", [](PassRun& run) {
                     fail_in_backward(run);
                     run.plain_step(1);
                     fail_in_backward(run);
                   }});
  cases.push_back({"evaluation between", [](PassRun& run) {
                     run.for_each_part([&](int part) {
                       const at::Tensor loss = run.loss(0, part);
                       {
                         const torch::NoGradGuard no_grad;
                         run.loss(1, part);
                       }
                       loss.backward();
                       const c10::InferenceMode inference;
                       run.loss(1, part);
                     });
                     run.step();
                   }});
  cases.push_back({"buffers that were written to after a forward that nobody went back through", [apart](PassRun& run) {
                     run.for_each_part([&](int part) { run.loss(0, part); });
                     {
                       const torch::NoGradGuard no_grad;
                       run.net->norm->running_mean.fill_(0.5);
                     }
                     run.net->norm->train();  // each rank's statistics are its own
                     apart({0, 1, 2})(run);
                     run.net->norm->eval();
                     run.net->norm->running_mean.fill_(0.25);
                     run.net->norm->running_var.fill_(1);
                   }});
  cases.push_back({"accumulation with no_sync", accumulate(true)});
  cases.push_back({"accumulation without no_sync", accumulate(false)});
  cases.push_back({"a forward under no_sync whose backward is outside of it", [](PassRun& run) {
                     run.for_each_part([&](int part) {
                       at::Tensor loss;
                       {
                         const auto guard = run.model.no_sync();
                         loss = run.loss(0, part);
                       }
                       loss.backward();
                     });
                     run.step();
                   }});
  cases.push_back({"a backward under no_sync whose forward was outside of it", [](PassRun& run) {
                     run.for_each_part([&](int part) {
                       const at::Tensor loss = run.loss(0, part);
                       const auto guard = run.model.no_sync();
                       loss.backward();
                     });
                     run.for_each_part([&](int part) { run.loss(1, part).backward(); });
                     run.step();
                   }});
  cases.push_back({"recomputation", [](PassRun& run) {
                     run.net->set_recompute(true);
                     run.plain_step(0);
                     run.for_each_part([&](int part) {
                       const at::Tensor first = run.loss(1, part);
                       const at::Tensor second = run.loss(2, part);
                       first.backward();
                       second.backward();
                     });
                     run.step();
                   }});
  cases.push_back(
      {"unused parameters",
       [](PassRun& run) {
         run.for_each_part([&](int part) { run.loss(0, part, /*uses_side=*/false).backward(); });
         run.step();
       },
       [](const Way& way) { return way.name == "ddp" ? std::string("the loss does not depend on") : std::string(); }});
  cases.push_back({"freeze and unfreeze",
                   [](PassRun& run) {
                     run.plain_step(0);
                     run.net->side->weight.requires_grad_(false);
                     run.plain_step(1);
                     run.net->side->weight.requires_grad_(true);
                     run.plain_step(2);
                   },
                   [](const Way& way) {
                     return way.is_by_parameter() ? std::string() : std::string("was frozen after fully_shard()");
                   }});
  cases.push_back({"promised gradients of three passes", [](PassRun& run) {
                     auto promised = run.model.promise_gradients();
                     for (int batch = 0; batch < 3; ++batch) {
                       run.for_each_part([&](int part) { run.loss(batch, part).backward(); });
                     }
                     promised.finish();
                     run.step();
                   }});
  cases.push_back({"promised gradients of passes apart", [](PassRun& run) {
                     auto promised = run.model.promise_gradients();
                     run.for_each_part([&](int part) {
                       const at::Tensor first = run.loss(0, part);
                       const at::Tensor second = run.loss(1, part);
                       second.backward();
                       const at::Tensor third = run.loss(2, part);
                       first.backward();
                       third.backward();
                     });
                     promised.finish();
                     run.step();
                   }});
  cases.push_back({"promised gradients that are complete while others are computed", [](PassRun& run) {
                     auto promised = run.model.promise_gradients();
                     run.for_each_part([&](int part) { run.loss(0, part).backward(); });
                     promised.complete(run.net->side->parameters());
                     for (const int batch : {1, 2}) {
                       run.for_each_part([&](int part) { run.loss(batch, part, /*uses_side=*/false).backward(); });
                     }
                     promised.complete({run.net->first->weight, run.net->frozen});
                     promised.complete({});
                     promised.finish();
                     run.step();
                   }});
  cases.push_back(
      {"promised gradients of parameters that no pass uses",
       [](PassRun& run) {
         auto promised = run.model.promise_gradients();
         for (const int batch : {0, 1}) {
           run.for_each_part([&](int part) { run.loss(batch, part, /*uses_side=*/false).backward(); });
         }
         promised.complete(run.net->side->parameters());
         promised.finish();
         run.step();
       },
       [](const Way& way) { return way.name == "ddp" ? std::string("the loss does not depend on") : std::string(); }});
  cases.push_back({"promised gradients that are all complete before the end", [](PassRun& run) {
                     auto promised = run.model.promise_gradients();
                     run.for_each_part([&](int part) { run.loss(0, part).backward(); });
                     promised.complete(run.net->parameters());
                     run.for_each_part([&](int part) { run.loss(1, part); });
                     promised.finish();
                     run.step();
                   }});
  cases.push_back({"promised weight gradients that come later", [](PassRun& run) {
                     auto promised = run.model.promise_gradients();
                     run.net->defers_side = true;
                     run.for_each_part([&](int part) {
                       const at::Tensor first = run.loss(0, part);
                       const at::Tensor second = run.loss(1, part);
                       first.backward();
                       second.backward();
                     });
                     run.net->defers_side = false;
                     promised.complete({run.net->first->weight, run.net->first->bias, run.net->side->bias});
                     for (const auto& deliver : std::exchange(run.net->deferred, {})) deliver();
                     promised.complete(std::vector<at::Tensor>{run.net->side->weight});
                     promised.finish();
                     run.step();
                   }});
  cases.push_back({"promised gradients on top of others", [](PassRun& run) {
                     run.for_each_part([&](int part) { run.loss(0, part).backward(); });
                     auto promised = run.model.promise_gradients();
                     for (const int batch : {1, 2}) {
                       run.for_each_part([&](int part) { run.loss(batch, part).backward(); });
                     }
                     promised.finish();
                     run.step();
                   }});
  cases.push_back({"a promise that an exception ends", [](PassRun& run) {
                     run.plain_step(0);
                     try {
                       auto promised = run.model.promise_gradients();
                       run.for_each_part([&](int part) { run.loss(1, part).backward(); });
                       promised.complete(run.net->side->parameters());
                       throw std::runtime_error("planned");
                     } catch (const std::runtime_error&) {
                       for (const at::Tensor& parameter : run.model.parameters()) {
                         EXPECT_TRUE(!run.is_shared() || !parameter.grad().defined());
                       }
                     }
                     run.zero_grad();
                     run.plain_step(2);
                   }});
  return cases;
}

struct CaseOutcome {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> weights;
};

/// The case, and a step behind it: nothing of it is left over.
CaseOutcome play(const Case& played, PassRun& run) {
  played.play(run);
  run.plain_step(7);
  const auto whole = run.model.gather();
  CaseOutcome outcome{run.norms, {}};
  for (const auto& entry : run.net->named_parameters()) {
    outcome.weights[entry.key()] = entry.value().detach().clone();
  }
  return outcome;
}

void expect_same(const CaseOutcome& found, const CaseOutcome& expected, const std::string& what) {
  ASSERT_EQ(found.norms.size(), expected.norms.size()) << what;
  for (std::size_t i = 0; i < found.norms.size(); ++i) {
    EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-12) << what << ", step " << i;
  }
  for (const auto& [name, value] : expected.weights) {
    EXPECT_TRUE(at::allclose(found.weights.at(name), value, 1e-9, 1e-12)) << what << ": " << name;
  }
}

class Passes : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Passes, GiveWhatOneProcessGivesInEveryWay) {
  const Case played = all_cases()[GetParam()];
  const auto alone = std::make_shared<SharedNet>();
  PassRun run_alone(alone, ParallelModel(alone), std::nullopt);
  const CaseOutcome expected = play(played, run_alone);
  for (const Way& way : all_ways()) {
    const std::string what = played.name + ", " + way.name;
    const std::string refusal = played.refusal(way);
    run_threads(kNumRanks, [&](const World& world) {
      const auto net = std::make_shared<SharedNet>();
      PassRun run(net, parallelize(net, make_mesh(world, way.options), way.options), world.rank());
      if (refusal.empty()) {
        expect_same(play(played, run), expected, what);
      } else {
        std::string text;
        try {
          played.play(run);
        } catch (const std::exception& error) {  // where an operator finds out, it is LibTorch's
          text = error.what();
        }
        require(text.find(refusal) != std::string::npos, what + " is refused: " + refusal + ", found: " + text);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Passes, ::testing::Range(std::size_t{0}, all_cases().size()), [](const auto& test) {
  std::string name = all_cases()[test.param].name;
  for (char& letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  }
  return name;
});

}  // namespace
}  // namespace tessera::testing
