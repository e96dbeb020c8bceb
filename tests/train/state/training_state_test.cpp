// What a training state holds, what it refuses, and the small parts of it.
#include <tessera/core/error.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/optim/schedule.h>
#include <tessera/shard/global_slice.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <set>

#include "support/error_message.h"
#include "support/require.h"
#include "train/state/memory_step.h"
#include "train/state/state_part.h"
#include "train/state/trainee.h"

namespace tessera::testing {
namespace {

std::set<std::string> names_of(const RankState& state, const std::string& group) {
  std::set<std::string> names;
  for (const HeldSlice& slice : state.slices) {
    if (slice.group == group) require(names.insert(slice.name).second, slice.name + " stands once");
  }
  return names;
}

using Names = std::set<std::string>;

TEST(TrainingState, NamesTensorsOfTheModelOnceWhateverTheLayout) {
  const Names expected{"tied",        "frozen",    "first.weight", "first.bias", "middle.bias",
                       "last.weight", "last.bias", "seen",         "drift"};
  for (const std::string& variant : trainee_variants()) {
    for (const int num_ranks : {1, 3, 4}) {
      if (!fits(variant, num_ranks)) continue;
      MemoryStep step(0);
      run_threads(num_ranks, [&](const World& world) {
        TraineeRun run(world, variant, "adam");
        run.train(1);
        const RankState state = run.state().capture();
        if (variant == "alone" || variant.starts_with("ddp") || variant == "no_shard") {
          Names own = expected;
          if (world.rank() > 0) std::erase_if(own, [](const auto& name) { return name == "seen" || name == "drift"; });
          require_equal(names_of(state, "model"), own, variant + ": all of it, and buffers on rank 0 alone");
        }
        step.add(state);
      });
      Names found;
      const StateSource source = step.source();
      for (const ManifestTensor& tensor : source.manifest.tensors) {
        if (tensor.group == "model") found.insert(tensor.name);
      }
      EXPECT_EQ(found, expected) << variant << " on " << num_ranks;
      EXPECT_EQ(step.tensor("model", "tied").scalar_type(), at::kDouble)
          << variant << ": of mixed precision the masters";
      for (const char* name : {"first.weight", "middle.bias", "tied"}) {
        EXPECT_TRUE(step.has("optimizer", std::string(name) + "/exp_avg")) << variant << " " << name;
        const auto& count = step.values().at("optimizer/" + std::string(name) + "/step");
        EXPECT_EQ(std::get<std::int64_t>(count), 1) << variant << " " << name;
      }
      EXPECT_FALSE(step.has("optimizer", "frozen/exp_avg"));
      EXPECT_EQ(std::get<double>(step.values().at("optimizer/group/0/lr")), 0.01);
    }
  }
}

TEST(TrainingState, SharesTheMemoryOfWhatIsTrained) {
  run_threads(2, [](const World& world) {
    TraineeRun run(world, "full", "sgd");
    run.train(1);
    const RankState before = run.state().capture();
    std::vector<at::Tensor> copies;
    for (const HeldSlice& slice : before.slices) copies.push_back(slice.values.clone());
    run.train(1);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const HeldSlice& slice = before.slices[i];
      if (slice.group == "training" || slice.name == "frozen") continue;
      require(!at::equal(slice.values, copies[i]), slice.name + " has moved on");
    }
  });
}

TEST(TrainingState, RefusesBuffersThatWereCut) {
  const auto model = std::make_shared<torch::nn::Module>();
  const at::Tensor buffer = model->register_buffer("mean", at::zeros({4}));
  set_global_slice(buffer, Slice::whole({8}).narrow(0, {4, 4}));
  TrainingState state;
  state.model(model);
  expect_parts(message_of<ConfigError>([&] { state.capture(); }),
               {"the buffer mean is [4:8] of [8]", "not saved and restored yet"});
}

TEST(TrainingState, RefusesAllThatDoesNotFitByNameAndChangesNothing) {
  MemoryStep step(7);
  run_threads(1, [&](const World& world) {
    train_and_save(world, "alone", "adam", 2, step);
    step.drop("model", "first.bias");
    step.drop("optimizer", "last.bias/exp_avg_sq");
    step.values().erase("optimizer/last.weight/step");
    step.values().erase("value/step");
    step.values()["value/other"] = std::int64_t{3};
    TraineeRun fresh(world, "alone", "adam");
    const Weights before = fresh.weights();
    const StateSource source = step.source();
    const auto text = message_of<ConfigError>([&] { fresh.state().restore(source); });
    expect_parts(text, {"step 7", "nothing was changed", "model/first.bias", "optimizer/last.bias/exp_avg_sq",
                        "optimizer/last.weight/step", "value/step", "value/other"});
    for (const auto& [name, value] : fresh.weights()) EXPECT_TRUE(at::equal(value, before.at(name))) << name;
    EXPECT_TRUE(fresh.optimizer().state().empty());

    const auto report = fresh.state().restore(source, RestoreOptions().allow_missing(true).allow_unexpected(true));
    EXPECT_EQ(report.missing.size(), 4U);
    EXPECT_EQ(report.unexpected, std::vector<std::string>{"value/other"});
    EXPECT_EQ(report.step, 7);
    const Weights after = fresh.weights();
    EXPECT_TRUE(at::equal(after.at("first.bias"), before.at("first.bias")));
    EXPECT_TRUE(at::equal(after.at("first.weight"), step.tensor("model", "first.weight")));
  });
}

TEST(TrainingState, TakesWeightsAloneAndAllOfThem) {
  run_threads(1, [](const World& world) {
    MemoryStep step(7);
    TraineeRun run(world, "alone", "adam");
    run.train(2);
    step.add(run.state().capture());
    TraineeRun fresh(world, "alone", "sgd");
    const auto weights_only = RestoreOptions().weights_only(true);
    const auto report = fresh.state().restore(step.source(), weights_only);
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.notes.empty());
    for (const auto& [name, value] : run.weights()) EXPECT_TRUE(at::equal(fresh.weights().at(name), value)) << name;
    EXPECT_TRUE(fresh.optimizer().state().empty());
    EXPECT_EQ(fresh.step(), 0);

    step.drop("model", "first.bias");
    expect_parts(message_of<ConfigError>([&] { fresh.state().restore(step.source(), weights_only); }),
                 {"nothing was changed", "It lacks", "model/first.bias"});
  });
}

TEST(TrainingState, RefusesAnotherShapeAndTheStateOfAnotherOptimizer) {
  run_threads(1, [](const World& world) {
    MemoryStep step(1);
    train_and_save(world, "alone", "sgd", 1, step);
    TraineeRun other(world, "alone", "adam");
    const StateSource source = step.source();
    expect_parts(message_of<ConfigError>([&] { other.state().restore(source); }),
                 {"optimizer/first.weight", "optimizer/first.weight/momentum_buffer"});

    const auto wide = std::make_shared<torch::nn::LinearImpl>(6, 8);
    TrainingState state;
    state.model(wide);
    const auto options =
        RestoreOptions().rename({{"weight", "first.weight"}, {"bias", "first.bias"}}).allow_unexpected(true);
    expect_parts(message_of<ConfigError>([&] { state.restore(source, options); }),
                 {"first.weight", "[7, 6] there", "[8, 6] here"});
  });
}

TEST(TrainingState, ReadsWhatIsCalledOtherwiseThere) {
  run_threads(1, [](const World& world) {
    MemoryStep step(1);
    train_and_save(world, "alone", "sgd", 2, step);
    auto layer = std::make_shared<torch::nn::LinearImpl>(6, 7);
    layer->to(at::kDouble);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    TrainingState state;
    state.model(layer).optimizer(optimizer);
    state.restore(step.source(),
                  RestoreOptions().rename({{"weight", "first.weight"}, {"bias", "first.bias"}}).allow_unexpected(true));
    EXPECT_TRUE(at::equal(layer->weight, step.tensor("model", "first.weight")));
    auto& kept = *optimizer.state().at(layer->bias.unsafeGetTensorImpl());
    EXPECT_TRUE(at::equal(static_cast<torch::optim::SGDParamState&>(kept).momentum_buffer(),
                          step.tensor("optimizer", "first.bias/momentum_buffer")));
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.05);
  });
}

TEST(TrainingState, RefusesOneCounterForParametersThatWereSteppedDifferentlyOften) {
  MemoryStep step(1);
  run_threads(1, [&](const World& world) { train_and_save(world, "alone", "adam", 2, step); });
  step.values()["optimizer/first.bias/step"] = std::int64_t{9};
  const StateSource source = step.source();
  run_threads(2, [&](const World& world) {
    TraineeRun row(world, "full", "adam");
    expect_parts(message_of<ConfigError>([&] { row.state().restore(source); }),
                 {"first.bias", "first.weight", "2", "9", "use_orig_params"});
    TraineeRun slices(world, "full orig", "adam");
    slices.state().restore(source);
  });
}

TEST(TrainingState, KnowsParametersThatWereNeverStepped) {
  MemoryStep step(0);
  run_threads(2, [&](const World& world) {
    TraineeRun run(world, "full", "adam");
    const RankState state = run.state().capture();
    require(names_of(state, "optimizer").empty(), "nothing is kept yet");
    require(std::get<bool>(state.values.at("optimizer/first.weight/is_new")), "and that is said");
    step.add(state);
  });
  const StateSource source = step.source();
  run_threads(3, [&](const World& world) {
    TraineeRun run(world, "ddp", "adam");
    run.train(2);
    run.state().restore(source);
    require(run.optimizer().state().empty(), "what was made since is gone");
  });
}

TEST(TrainingState, RefusesWhatItCannotSave) {
  auto model = std::make_shared<torch::nn::LinearImpl>(2, 2);
  torch::optim::SGD stranger(std::vector<at::Tensor>{at::zeros({3})}, torch::optim::SGDOptions(0.1));
  torch::optim::LBFGS lbfgs(model->parameters());
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  std::int64_t number = 0;
  TrainingState state;
  EXPECT_THROW(state.optimizer(sgd), ConfigError) << "the model comes first";
  state.model(model).value("number", number);
  EXPECT_THROW(state.model(model), ConfigError);
  EXPECT_THROW(state.value("number", number), ConfigError);
  expect_parts(message_of<ConfigError>([&] { TrainingState().model(model).optimizer(stranger); }),
               {"parameter 0 of group 0", "[3]"});
  expect_parts(message_of<ConfigError>([&] { TrainingState().model(model).optimizer(lbfgs); }), {"LBFGS", "SGD"});
}

TEST(TrainingState, FailsOnAllRanksWhenOneCannotRead) {
  MemoryStep step(3);
  run_threads(2, [&](const World& world) { train_and_save(world, "zero1", "sgd", 0, step); });
  const StateSource source = step.source();
  run_threads(2, [&](const World& world) {
    const auto fill = [&](const std::vector<HeldSlice>& slices) {
      if (world.rank() == 1) throw StorageError("the disk is gone");
      source.fill(slices);
    };
    TraineeRun run(world, "zero1", "sgd");
    const auto text = message_of<StorageError>([&] { run.state().restore({source.manifest, fill}); });
    expect_parts(text, {"the disk is gone"});
    if (world.rank() == 0) expect_parts(text, {"rank 1", "step 3", "(rank 0)"});
    run.state().restore(source);
    run.train(1);
  });
}

TEST(TrainingState, KeepsTensorsThatDoNotLieRowByRow) {
  auto conv = std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 4, 2));
  {
    const at::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  TrainingState state;
  state.model(conv);
  MemoryStep step(0);
  const RankState captured = state.capture();
  for (const HeldSlice& slice : captured.slices) EXPECT_TRUE(slice.values.is_contiguous()) << slice.name;
  step.add(captured);
  const at::Tensor expected = conv->weight.detach().clone();
  {
    const at::NoGradGuard no_grad;
    conv->weight.zero_();
  }
  state.restore(step.source());
  EXPECT_TRUE(at::equal(conv->weight, expected));
  EXPECT_FALSE(conv->weight.is_contiguous());
}

TEST(TrainingState, KeepsScheduleScalerSamplerAndValues) {
  run_threads(1, [](const World& world) {
    struct Program {
      explicit Program(const World& ranks)
          : model(std::make_shared<torch::nn::LinearImpl>(2, 2)),
            optimizer(model->parameters(), torch::optim::SGDOptions(0.1)),
            schedule(optimizer, ScheduleOptions().kind(ScheduleKind::kCosine).total_steps(100)),
            scaler(ranks),
            loader(Sampler(64, ranks.rank(), ranks.size(), SamplerOptions().global_batch(8)),
                   [](const SampleBatch& part) { return part.samples; }),
            state(ranks) {
        state.model(model).optimizer(optimizer).schedule(schedule).scaler(scaler).sampler(loader);
        state.value("loss", loss).value("tokens", tokens).value("done", done).value("name", name);
      }
      std::shared_ptr<torch::nn::LinearImpl> model;
      torch::optim::SGD optimizer;
      LrSchedule schedule;
      GradScaler scaler;
      Loader<std::vector<std::int64_t>> loader;
      double loss = 0;
      std::int64_t tokens = 0;
      bool done = false;
      std::string name;
      TrainingState state;
    };
    Program first(world);
    for (int i = 0; i < 30; ++i) first.schedule.advance();
    first.scaler.set_state({512, 17});
    for (int i = 0; i < 11; ++i) first.loader.next();  // into the second epoch
    first.loss = 0.1;
    first.tokens = std::int64_t{1} << 60;
    first.done = true;
    first.name = "a \"name\"";
    MemoryStep step(30);
    step.add(first.state.capture());
    Program second(world);
    second.loader.next();
    second.state.restore(step.source());
    require_equal(second.schedule.step(), 30, "the schedule");
    require_equal(second.schedule.factor(), first.schedule.factor(), "the schedule");
    require_equal(second.optimizer.param_groups()[0].options().get_lr(),
                  first.optimizer.param_groups()[0].options().get_lr(), "the learning rate");
    require_equal(second.schedule.full_rates(), first.schedule.full_rates(), "and the full one");
    require_equal(second.scaler.state(), first.scaler.state(), "the scaler");
    require_equal(second.loader.state(), first.loader.state(), "the place in the data");
    require_equal(second.loader.next(), first.loader.next(), "and what comes next");
    require_equal(second.loss, 0.1, "values");
    require_equal(second.tokens, first.tokens, "values");
    require_equal(second.name, first.name, "values");
    require(second.done, "values");
  });
}

TEST(RandomState, GoesOnWithTheSameNumbers) {
  at::manual_seed(5);
  at::rand({3});
  at::randn({1});
  TrainingState state;
  MemoryStep step(0);
  step.add(state.capture());
  const at::Tensor expected = at::randn({20});
  at::manual_seed(6);
  const auto report = state.restore(step.source());
  EXPECT_TRUE(at::equal(at::randn({20}), expected));
  EXPECT_TRUE(report.notes.empty());
}

TEST(RandomState, OfARankThatWasNotThereComesFromRank0) {
  at::manual_seed(5);
  MemoryStep step(0);
  step.add(TrainingState().capture());
  at::Generator copy = at::detail::createCPUGenerator();
  copy.set_state(step.tensor("training", "random/rank/0/cpu"));
  auto* const generator = at::check_generator<at::CPUGeneratorImpl>(copy);
  generator->random64();
  generator->random64();
  at::manual_seed(generator->random64());
  const at::Tensor expected = at::randn({20});

  const StateSource source = step.source();
  const auto part = train::random_part(2);
  train::SavedNames names(source.manifest, {});
  part->plan(names);
  names.require_complete();
  source.fill(part->prepare());
  std::vector<std::string> notes;
  part->finish(notes);
  EXPECT_TRUE(at::equal(at::randn({20}), expected));
  ASSERT_EQ(notes.size(), 1U);
  expect_parts(notes[0], {"rank 2", "rank 0's state"});
}

}  // namespace
}  // namespace tessera::testing
