// What a program may do with a model that is cut, and what is refused.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/synchroniser.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/nn/modules.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "parity/models.h"
#include "support/error_message.h"
#include "support/require_tensors.h"
#include "support/temporary_folder.h"
#include "support/whole_copy.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;

struct Mlp : nn::Module {
  explicit Mlp(std::int64_t inner = 6)
      : up(register_module("up", nn::Linear(4, inner))),
        down(register_module("down", nn::Linear(inner, 4))),
        tied(register_parameter("tied", torch::zeros({5, 4}))) {
    to(at::kDouble);
    fill_by_formula(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  nn::Linear up;
  nn::Linear down;
  at::Tensor tied;
};

const TensorPlan kPlan{{"up", split_columns()}, {"down", split_rows()}};

at::Tensor batch() { return formula({3, 4}, 1, at::kDouble); }

/// On each of `num_ranks` ranks, with its model cut.
void with_mlp(int num_ranks, const std::function<void(const World&, Mlp&, const TensorParallelModel&)>& check) {
  run_threads(num_ranks, [&](const World& world) {
    const auto model = std::make_shared<Mlp>();
    const auto parallel = tensor_parallel(model, world, kPlan);
    check(world, *model, parallel);
  });
}

TEST(TensorParallel, HoldsItsShareOfTheWeights) {
  with_mlp(4, [](const World& world, Mlp& model, const TensorParallelModel& parallel) {
    require_equal(model.up->weight.sizes().vec(), std::vector<std::int64_t>{6, 4}, "the sizes that a program sees");
    const at::Tensor part = intercept::held_part(model.up->weight);
    require_equal(part.sizes().vec(), std::vector<std::int64_t>{world.rank() < 3 ? 2 : 0, 4}, "the rows held");
    require_equal(intercept::held_part(model.down->weight).size(1), world.rank() < 3 ? 2L : 0L, "the columns held");
    require(!intercept::acting_data(model.down->bias), "a bias that is added after the sum is whole");
    require_equal(count_parameters(parallel), count_parameters(std::make_shared<Mlp>()), "parameters");
    // The whole is where it was.
    require_equal(whole_copy(model.up->weight), Mlp().up->weight.detach(), "values");
  });
}

TEST(TensorParallel, SendsWhatTheFormulaSays) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel& parallel) {
    const at::Tensor x = batch().requires_grad_();
    model.forward(x).sum().backward();
    const TensorReport report = parallel.report();
    using Kind = TensorTransfer::Kind;
    require_equal(report.num_bytes(Kind::kAllReduce), 3 * 4 * 8L, "the sum of the layer that is cut by rows");
    require_equal(report.num_bytes(Kind::kBackwardAllReduce), 3 * 4 * 8L, "the gradient of what enters");
    require_equal(report.num_bytes(), 2 * 3 * 4 * 8L, "nothing else");
    require(parallel.report().transfers.empty(), "a report tells of what was sent since the last");
  });
}

TEST(TensorParallel, ReportsWhereAPlanLeaks) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Mlp>();
    const auto parallel = tensor_parallel(model, world, {{"up", split_columns()}});
    model->up(batch()).roll(1, 1).sum().backward();
    const std::string text = parallel.report().text();
    expect_parts(text, {"all-gather", "aten::roll, up.weight", "no rule: the plan leaks here", "144 B"});
  });
}

TEST(TensorParallel, RefusesToGatherInStrictMode) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Mlp>();
    tensor_parallel(model, world, kPlan, TensorParallelOptions().strict(true));
    model->forward(batch()).sum().backward();
    expect_parts(message_of<ConfigError>([&] { model->up(batch()).roll(1, 1); }),
                 {"aten::roll has no rule", "shard(1, granules of 3)", "up.weight", "strict(false)"});
  });
}

TEST(TensorParallel, RefusesPlansThatDoNotFit) {
  run_threads(2, [](const World& world) {
    const auto refusal = [&](const TensorPlan& plan) {
      return message_of<ConfigError>([&] { tensor_parallel(std::make_shared<Mlp>(), world, plan); });
    };
    expect_parts(refusal({{"upp", split_columns()}}), {"does not fit the model", "'upp' matches no module",
                                                       "Modules with parameters of their own: up, down"});
    expect_parts(refusal({{"up", split_heads(4)}}),
                 {"'up': dimension 0 has 6 indices, which heads(4) does not divide"});
    expect_parts(refusal({{"up", split_columns()}, {"*.weight", split_rows()}}),
                 {"up.weight would be ", "shard(1), but 'up' has it shard(0)", "would be", "has it"});
    expect_parts(refusal({{"down.bias", split_rows()}}), {"cuts nothing"});
    expect_parts(message_of<ConfigError>([&] { tensor_parallel(std::shared_ptr<nn::Module>(), world, kPlan); }),
                 {"no model to cut"});
    const auto model = std::make_shared<Mlp>();
    tensor_parallel(model, world, kPlan);
    expect_parts(message_of<ConfigError>([&] { tensor_parallel(model, world, kPlan); }), {"up.weight is cut already"});
    expect_parts(message_of<ConfigError>([&] {
                   tensor_parallel(std::make_shared<Mlp>(), world,
                                   {{"up", world.rank() == 0 ? split_columns() : split_rows()}});
                 }),
                 {"do not cut the same model", "split up: "});
  });
}

TEST(TensorParallel, RefusesAnEmbeddingByRows) {
  run_threads(1, [](const World& world) {
    nn::Sequential model(nn::Embedding(6, 4));
    expect_parts(message_of<ConfigError>([&] { tensor_parallel(model, world, {{"0", split_rows()}}); }),
                 {"the table of an embedding has no inputs to split by rows", "vocabulary"});
  });
}

TEST(TensorParallel, RefusesBatchesThatDiffer) {
  with_mlp(3, [](const World& world, Mlp& model, const TensorParallelModel&) {
    const at::Tensor x = world.rank() == 2 ? batch() + 1e-9 : batch();
    expect_parts(message_of<ConfigError>([&] { model.forward(x); }),
                 {"different numbers", "up.weight", "between rank 0 and rank 2", "the same batch, the same seed"});
  });
}

TEST(TensorParallel, RefusesToBeSharedInSomeWays) {
  with_mlp(1, [](const World& world, Mlp& model, const TensorParallelModel& parallel) {
    const auto module = std::const_pointer_cast<nn::Module>(parallel.module().shared_from_this());
    const auto copies = DdpOptions().reproducible(true).micro_batches(1);
    expect_parts(
        message_of<ConfigError>([&] { static_cast<void>(distribute(module, world, copies)); }),
        {"up.weight", "is cut by tensor parallelism, which this way of training", "without reproducible(true)"});
    expect_parts(message_of<ConfigError>([&] { Synchroniser(model.parameters(), world); }),
                 {"a parameter is cut by tensor parallelism, and a Synchroniser needs all of it"});
  });
  run_threads(1, [](const World& world) {
    nn::Sequential model(nn::Linear(4, 4), nn::BatchNorm1d(4));
    tensor_parallel(model, world, {{"1", split_columns()}});
    expect_parts(message_of<ConfigError>([&] { static_cast<void>(distribute(model.ptr(), world)); }),
                 {"the buffer 1.running_mean is cut by tensor parallelism", "leave its layer out of the plan"});
  });
}

TEST(TensorParallel, RefusesAModelThatIsShared) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Mlp>();
    const auto copies = distribute(std::shared_ptr<nn::Module>(model), world);
    expect_parts(message_of<ConfigError>([&] { tensor_parallel(model, world, kPlan); }),
                 {"the model is shared already"});
  });
}

TEST(TensorParallel, RefusesToChangeAShapeInPlace) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    const torch::NoGradGuard no_grad;
    const at::Tensor inner = model.up(batch());
    expect_parts(message_of<ConfigError>([&] { inner.resize_as_(at::zeros({2})); }),
                 {"changes the shape of a tensor that is cut"});
    expect_parts(message_of<ConfigError>([&] { inner.transpose_(0, 1); }),
                 {"aten::transpose_ of a tensor that is cut (of up.weight) is refused",
                  "the shape of a tensor is changed in place"});
    expect_parts(message_of<ConfigError>([&] { inner.as_strided({2}, {1}); }),
                 {"memory is addressed in a tensor of which"});
  });
  run_threads(2, [](const World& world) {
    nn::Sequential model(nn::BatchNorm1d(4));
    tensor_parallel(model, world, {{"0", split_columns()}});
    const auto buffers = model->buffers();
    expect_parts(message_of<ConfigError>([&] {
                   at::instance_norm(at::ones({2, 4, 3}), {}, {}, buffers[0], buffers[1], true, 0.1, 1e-5, false);
                 }),
                 {"running statistics would be written to a copy", "leave the layer out of the plan"});
  });
}

TEST(TensorParallel, RefusesStatesOfAnotherLayout) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    model.forward(batch()).sum().backward();
    optimizer.step();
    auto& state =
        static_cast<torch::optim::AdamWParamState&>(*optimizer.state()[model.up->weight.unsafeGetTensorImpl()]);
    state.exp_avg(at::zeros({6, 4}, at::kDouble));
    expect_parts(message_of<ConfigError>([&] { optimizer.step(); }),
                 {"was given a tensor that is whole for a parameter that is shard(0, granules of 3)"});
  });
}

TEST(TensorParallel, RefusesClassesAndTokensThatDoNotExist) {
  for (const int num_ranks : {1, 2, 8}) {  // the last of eight have no rows
    run_threads(num_ranks, [](const World& world) {
      nn::Sequential model(nn::Embedding(6, 6));
      tensor_parallel(model, world, {{"0", split_vocabulary()}});
      const at::Tensor weight = model->parameters().front();
      for (const std::int64_t token : {std::int64_t{6}, std::int64_t{-1}}) {
        const at::Tensor tokens = at::full({2}, token, at::kLong);
        expect_parts(message_of<c10::IndexError>([&] { at::embedding(weight, tokens); }),
                     {"index out of range in self"});
        const at::Tensor logits = at::matmul(at::ones({2, 6}), weight.t());
        expect_parts(message_of<c10::IndexError>([&] { at::cross_entropy_loss(logits, tokens); }),
                     {"a target is out of bounds: there are 6 classes"});
      }
    });
  }
}

TEST(TensorParallel, RefusesTwoModelsInOneOperator) {
  run_threads(2, [](const World& world) {
    const auto first = std::make_shared<Mlp>();
    const auto second = std::make_shared<Mlp>();
    tensor_parallel(first, world, kPlan);
    tensor_parallel(second, world, kPlan);
    expect_parts(message_of<ConfigError>([&] { first->up(batch()) + second->up(batch()); }),
                 {"meet in one operator", "different groups of ranks"});
  });
}

TEST(TensorParallel, RefusesWritesToWhatPassesForAView) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    const at::Tensor inner = model.up(batch());
    const at::Tensor column = inner.select(1, 2);  // gathered
    expect_parts(message_of<ConfigError>([&] { column.zero_(); }), {"would be lost", "gathered from all ranks"});
    const torch::NoGradGuard no_grad;
    expect_parts(message_of<ConfigError>([&] { model.up->weight.select(0, 1).zero_(); }), {"would be lost"});
  });
}

TEST(TensorParallel, RefusesViewsThatAreOutOfDate) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    const at::Tensor row = model.up->weight.detach().select(0, 2);  // gathered
    static_cast<void>(row.sum());
    {
      const torch::NoGradGuard no_grad;
      model.up->weight.mul_(2);
    }
    expect_parts(message_of<ConfigError>([&] { row.sum(); }),
                 {"would read a copy that is out of date", "gathered from all ranks"});
  });
}

TEST(TensorParallel, RefusesAHistoryThatADetachedParameterCannotHave) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    const at::Tensor detached = model.up->weight.detach();
    expect_parts(message_of<ConfigError>([&] { detached.add_(model.up->weight); }),
                 {"something with a gradient is written to a detached parameter (of up.weight)", "clone() it first"});
  });
}

TEST(TensorParallel, RefusesParametersThatShareMemory) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Mlp>(4);
    model->down->weight.set_data(model->up->weight.data());
    expect_parts(message_of<ConfigError>([&] { tensor_parallel(model, world, kPlan); }),
                 {"up.weight shares its memory with down.weight", "register one tensor in both places"});
  });
}

TEST(TensorParallel, RefusesPointersToAPart) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel&) {
    EXPECT_THROW(model.up->weight.data_ptr(), c10::Error);
    EXPECT_THROW((void)model.up->weight.storage(), c10::Error);
    std::ostringstream file;
    EXPECT_ANY_THROW(torch::save(model.up->weight, file));
  });
}

/// The norm of all gradients, and the gradients after clipping, in one process.
TEST(TensorParallel, ClipsByTheNormOfTheWhole) {
  Mlp alone;
  alone.forward(batch()).square().sum().backward();
  const double expected = clip_grad_norm(alone.parameters(), 0.1);
  with_mlp(3, [&](const World&, Mlp& model, const TensorParallelModel& parallel) {
    const auto gradient = [&] { return at::empty({6, 4}, at::kDouble).copy_(model.up->weight.grad()); };
    model.forward(batch()).square().sum().backward();
    require(std::abs(clip_grad_norm(parallel, 0.1) - expected) < 1e-12, "ours");
    require(at::allclose(gradient(), alone.up->weight.grad(), 1e-12, 1e-12), "gradients after ours");
    parallel.module();
    model.zero_grad();
    model.forward(batch()).square().sum().backward();
    require(std::abs(nn::utils::clip_grad_norm_(model.parameters(), 0.1) - expected) < 1e-12, "LibTorch's own");
    // LibTorch divides by a norm that is larger by 1e-6.
    require(at::allclose(gradient(), alone.up->weight.grad(), 1e-5, 1e-8), "gradients after LibTorch's");
    require(
        std::abs(model.up->weight.grad().norm().item<double>() - alone.up->weight.grad().norm().item<double>()) < 1e-5,
        "the norm of one gradient");
  });
}

TEST(TensorParallel, CutsAGradientThatAProgramSets) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel& parallel) {
    for (at::Tensor& parameter : model.parameters())
      parameter.mutable_grad() = at::ones(parameter.sizes(), at::kDouble);
    const double count = static_cast<double>(count_parameters(parallel));
    require(std::abs(clip_grad_norm(parallel, 1e9) - std::sqrt(count)) < 1e-12, "the norm");
    torch::optim::SGD(model.parameters(), 1.0).step();
    require_equal(whole_copy(model.up->weight), Mlp().up->weight.detach() - 1, "step");
  });
}

TEST(TensorParallel, AddsUpGradientsOfSeveralPasses) {
  Mlp alone;
  for (int i = 0; i < 3; ++i) alone.forward(batch() * (i + 1)).square().sum().backward();
  with_mlp(2, [&](const World&, Mlp& model, const TensorParallelModel&) {
    for (int i = 0; i < 3; ++i) model.forward(batch() * (i + 1)).square().sum().backward();
    const at::Tensor found = at::empty({6, 4}, at::kDouble).copy_(model.up->weight.grad());
    require(at::allclose(found, alone.up->weight.grad(), 1e-12, 1e-12), "gradient");
  });
}

TEST(TensorParallel, TakesValuesThatAProgramLoads) {
  std::stringstream file;
  {
    const auto saved = std::make_shared<Mlp>();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : saved->parameters()) parameter.mul_(2);
    torch::save(saved, file);
  }
  const std::string bytes = file.str();
  with_mlp(2, [&](const World&, Mlp& model, const TensorParallelModel& parallel) {
    std::istringstream saved(bytes);
    auto module =
        std::dynamic_pointer_cast<Mlp>(std::const_pointer_cast<nn::Module>(parallel.module().shared_from_this()));
#ifdef __SANITIZE_THREAD__
    // The reader of files is LibTorch's, which is not instrumented: ThreadSanitizer takes it for a race.
    for (at::Tensor& parameter : model.parameters()) parameter.set_data(whole_copy(parameter) * 2);
#else
    torch::load(module, saved);
#endif
    require(intercept::acting_data(model.up->weight), "it is cut as before");
    require_equal(whole_copy(model.up->weight), Mlp().up->weight.detach() * 2, "values");
    const torch::NoGradGuard no_grad;
    model.up->weight.copy_(at::ones({6, 4}, at::kDouble));
    require_equal(intercept::held_part(model.up->weight), at::ones({3, 4}, at::kDouble), "a copy");
    model.to(at::kFloat);
    require_equal(intercept::held_part(model.up->weight), at::ones({3, 4}), "another type");
  });
}

TEST(TensorParallel, IsWholeOnEachRankWhileItIsHeld) {
  with_mlp(3, [](const World& world, Mlp& model, const TensorParallelModel& parallel) {
    const at::Tensor expected = Mlp().forward(batch()).detach();
    {
      const auto whole = parallel.gather();
      if (world.rank() == 1) require_equal(model.forward(batch()).detach(), expected, "alone");
      const auto again = parallel.gather(GatherOptions().module(model.up.ptr()));
      require(model.up->weight.data_ptr() != nullptr, "bytes");
      const torch::NoGradGuard no_grad;
      model.up->weight.mul_(2);  // on every rank
    }
    require(intercept::holds_part(model.up->weight), "it is cut again");
    require_equal(whole_copy(model.up->weight), Mlp().up->weight.detach() * 2, "what was written stays");
    model.forward(batch()).sum().backward();
    require(intercept::holds_part(model.up->weight.grad()), "and trains on");
  });
}

TEST(TensorParallel, StartsWithTheValuesOfRankZero) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Mlp>();
    {
      const torch::NoGradGuard no_grad;
      if (world.rank() == 1) model->up->weight.zero_();
    }
    tensor_parallel(model, world, kPlan);
    require_equal(at::empty({6, 4}, at::kDouble).copy_(model->up->weight.detach()), Mlp().up->weight.detach(),
                  "values");
  });
}

TEST(TensorParallel, BuildsModelsThatHaveNoBytesYet) {
  run_threads(1, [](const World& world) {
    struct Large : nn::Module {
      Large() : layer(register_module("layer", nn::Linear(64, 48))) {}
      nn::Linear layer;
    };
    torch::manual_seed(5);
    const Large expected;
    torch::manual_seed(5);
    const auto model = [] {
      const DeferredInit no_bytes;
      return std::make_shared<Large>();
    }();
    tensor_parallel(model, world, {{"layer", split_columns()}});
    require_equal(intercept::held_part(model->layer->weight), expected.layer->weight.detach(), "values");
  });
}

TEST(TensorPlan, IsWrittenAsText) {
  const TensorPlan plan{{"blocks.*.qkv", split_heads(8).packed(3)},
                        {"blocks.*.out", split_rows().heads(8).transposed()},
                        {"up", split_columns()},
                        {"embedding", split_vocabulary()}};
  const std::vector<std::string> lines{"blocks.*.qkv: heads(8).packed(3)", "blocks.*.out: rows.heads(8).transposed",
                                       "up: columns", "embedding: vocabulary"};
  EXPECT_EQ(plan.lines(), lines);
  EXPECT_EQ(TensorPlan::parse(lines).lines(), lines);
  for (const std::string wrong :
       {"heads", "heads(0)", "heads(x)", "columns(3)", "columns.packed", "rowss", "", "rows."}) {
    expect_parts(message_of<ConfigError>([&] { TensorSplit::parse(wrong); }),
                 {"no way to split a layer", "vocabulary"});
  }
  expect_parts(message_of<ConfigError>([] { TensorPlan::parse({"up columns"}); }),
               {"'up columns' is no line of a plan"});
}

TEST(TensorPlan, RefusesCountsBelowOne) {
  expect_parts(message_of<ConfigError>([] { split_heads(0); }), {"a layer has at least one head, found 0"});
  expect_parts(message_of<ConfigError>([] { split_columns().packed(-1); }), {"at least one packed layer, found -1"});
}

TEST(TensorPlan, IsReadFromAFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "plan.toml";
  std::ofstream(path) << "split = [\"up: columns\", \"down: rows\"]\n";
  EXPECT_EQ(TensorPlan::load(path).lines(), kPlan.lines());
  std::ofstream(path) << "splits = []\n";
  expect_parts(message_of<ConfigError>([&] { TensorPlan::load(path); }), {"splits"});
}

TEST(TensorParallel, RefusesToTrainWhileGatherHoldsIt) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel& parallel) {
    const at::Tensor before = model.up->weight.detach();
    model.forward(batch()).sum().backward();
    {
      const Whole whole(parallel);
      expect_parts(message_of<ConfigError>([&] { model.forward(batch()).sum().backward(); }),
                   {"a backward pass reaches a parameter while gather() holds a model whole", "end gather() first"});
      expect_parts(message_of<ConfigError>([&] { clip_grad_norm(parallel, 1); }),
                   {"gradients are asked for while gather() holds a model whole"});
      expect_parts(message_of<ConfigError>([&] { before.mul(2); }),
                   {"aten::mul of a tensor that was cut with up.weight while gather() holds a model whole that tensor "
                    "parallelism cuts (rank ",
                    "use what is whole, or end gather() first"});
    }
    clip_grad_norm(parallel, 1);
    model.forward(batch()).sum().backward();
  });
}

TEST(TensorParallel, RefusesViewsOfAWholeThatWasHeld) {
  with_mlp(2, [](const World&, Mlp& model, const TensorParallelModel& parallel) {
    at::Tensor view;
    at::Tensor copy;
    {
      const Whole whole(parallel);
      view = model.up->weight.detach();
      copy = view.clone();
    }
    const std::string_view words = "a view of up.weight that was made while gather() held it whole is used after that";
    expect_parts(message_of<c10::Error>([&] { view.sum(); }), {words, "clone() it inside"});
    expect_parts(message_of<c10::Error>([&] { view.mul_(2); }), {words});
    require_equal(copy, whole_copy(model.up->weight), "a copy");
  });
}

TEST(TensorParallel, EvaluatesInInferenceMode) {
  Mlp alone;
  const at::Tensor expected = alone.forward(batch());
  with_mlp(3, [&](const World&, Mlp& model, const TensorParallelModel&) {
    {
      const c10::InferenceMode inference;
      require(at::allclose(model.forward(batch()), expected), "the output");
      require(at::allclose(whole_copy(model.up(batch())), alone.up(batch())), "an output that is cut");
    }
    model.forward(batch()).sum().backward();
  });
}

/// The names of autograd's nodes of ours, in the order in which they run on this thread while it lives.
class NodesRun {
 public:
  NodesRun() { current = &names_; }
  ~NodesRun() { current = nullptr; }
  NodesRun(const NodesRun&) = delete;
  NodesRun& operator=(const NodesRun&) = delete;

  const std::vector<std::string>& names() const { return names_; }

  static at::RecordFunctionCallback callback() {
    return at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
             const std::string name = function.name();
             if (current && name.starts_with("tessera::")) current->push_back(name);
             return nullptr;
           })
        .scopes({at::RecordScope::BACKWARD_FUNCTION});
  }

 private:
  static thread_local std::vector<std::string>* current;
  std::vector<std::string> names_;
};
thread_local std::vector<std::string>* NodesRun::current = nullptr;

/// Three layers of one input, as q, k and v.
struct SharedInput : nn::Module {
  SharedInput() {
    for (const char* const name : {"q", "k", "v"}) layers.emplace_back(register_module(name, nn::Linear(4, 6)));
    to(at::kDouble);
    fill_by_formula(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return layers[0](x) * layers[1](x) + layers[2](x); }
  std::vector<nn::Linear> layers;
};

TEST(TensorParallel, ComputesWeightGradientsWhileTheInputsIsSummed) {
  const auto handle = at::addGlobalCallback(NodesRun::callback());
  const std::vector<std::string> expected{
      "tessera::SplitProduct",   "tessera::SplitProduct",   "tessera::SplitProduct",   "tessera::StartSum",
      "tessera::WeightGradient", "tessera::WeightGradient", "tessera::WeightGradient", "tessera::WaitForSum"};
  for (const std::int64_t num_dims : {2, 3}) {  // LibTorch's layer calls addmm() or matmul()
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<SharedInput>();
      tensor_parallel(model, world, {{"*", split_columns()}});
      const auto sizes = num_dims == 2 ? std::vector<std::int64_t>{3, 4} : std::vector<std::int64_t>{2, 3, 4};
      const at::Tensor x = formula(sizes, 1, at::kDouble).requires_grad_(true);
      const at::Tensor loss = model->forward(x).square().sum();
      const NodesRun run;
      loss.backward();
      std::vector<std::string> found;
      std::copy_if(run.names().begin(), run.names().end(), std::back_inserter(found), [&](const std::string& name) {
        return std::find(expected.begin(), expected.end(), name) != expected.end();
      });
      require_equal(found, expected, "the order of backward");
    });
  }
  at::removeCallback(handle);
}

TEST(TensorParallel, IsDistributedAgain) {
  with_mlp(2, [](const World& world, Mlp& model, const TensorParallelModel& parallel) {
    const Communicator alone = world.comm().split({world.rank()});
    for (int time = 0; time < 2; ++time) {
      const auto copies =
          distribute(parallel.model_state()->module(), alone, DdpOptions().find_unused_parameters(true));
      model.forward(batch()).sum().backward();
      require(clip_grad_norm(copies, 1) > 0, "the norm over both axes");
    }
  });
}

}  // namespace
}  // namespace tessera::testing
