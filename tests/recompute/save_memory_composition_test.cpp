// Strategies that save memory on models that are copied, sharded, cut or staged: they train as one plain process does.
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/ranks.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/recompute/save_memory.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "parity/models.h"
#include "support/require.h"
#include "tensor_parallel/plans.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, at::Tensor>;
constexpr int kSteps = 3;

MemorySaving saving(const std::shared_ptr<ParityModel>& model, const std::string& strategy) {
  auto options = SaveMemoryOptions().strategy(strategy);
  if (strategy == "aggressive") options.modules({"*"});
  return save_memory(model, options);
}

void train(ParityModel& model, std::vector<at::Tensor> parameters) {
  torch::optim::SGD optimizer(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model.loss(model.forward(model.input(step, 0)), step, 0).backward();
    optimizer.step();
  }
}

Values values_of(const torch::nn::Module& model) {
  Values values;
  for (const auto& item : model.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model.named_buffers()) values[item.key()] = item.value().detach().clone();
  return values;
}

Values train_alone(const std::string& name) {
  const auto model = make_parity_model(name, torch::kDouble);
  train(*model, model->parameters());
  return values_of(*model);
}

void require_same(const Values& found, const Values& expected, const std::string& what) {
  for (const auto& [name, value] : found) {
    const double difference = (value - expected.at(name)).abs().max().item<double>();
    require(difference <= 1e-12, what + ": " + name + " differs by " + std::to_string(difference * 1e12) + "e-12");
  }
}

using Share = std::function<ParallelModel(const std::shared_ptr<ParityModel>&, const World&)>;

void expect_same(const std::vector<std::string>& names, const Share& share, bool drops = true) {
  for (const std::string& name : names) {
    const Values expected = train_alone(name);
    for (const std::string strategy : {"standard", "aggressive"}) {
      run_threads(2, [&](const World& world) {
        const auto model = make_parity_model(name, torch::kDouble);
        const ParallelModel parallel = share(model, world);
        const MemorySaving saved = saving(model, strategy);
        train(*model, parallel.parameters());
        const std::string what = name + ", " + strategy;
        require(!drops || saved.report().num_dropped > 0, what + ": nothing was dropped");
        const SavedMemoryReport report = saved.report();
        require(report.kept_bytes == 0, what + ": " + std::to_string(report.num_kept) + " pieces of memory with " +
                                            std::to_string(report.kept_bytes) + " bytes are kept after the last step");
        const auto whole = parallel.gather();
        require_same(values_of(*model), expected, what);
      });
    }
  }
}

TEST(SaveMemoryComposition, WithCopies) {
  expect_same({"gpt", "gpt2", "transformer", "bert", "function"},
              [](const std::shared_ptr<ParityModel>& model, const World& world) -> ParallelModel {
                return distribute(std::shared_ptr<torch::nn::Module>(model), world,
                                  DdpOptions().bucket_bytes(1024).first_bucket_bytes(256));
              });
}

TEST(SaveMemoryComposition, WithShards) {
  for (const bool shared_copy : {true, false}) {
    expect_same({"gpt", "recomputed gpt", "gpt2", "transformer", "bert", "vit", "function", "sequential"},
                [&](const std::shared_ptr<ParityModel>& model, const World& world) -> ParallelModel {
                  return fully_shard(
                      model, world.comm(),
                      FsdpOptions().auto_wrap(wrap_by_size(100)).min_num_params(10).shared_copy(shared_copy));
                });
  }
}

TEST(SaveMemoryComposition, WithCutLayers) {
  for (const std::string name : {"gpt", "recomputed gpt", "gpt2", "transformer", "bert", "vit"}) {
    expect_same({name}, [&](const std::shared_ptr<ParityModel>& model, const World& world) -> ParallelModel {
      return tensor_parallel(model, world, plan_for(name));
    });
  }
}

TEST(SaveMemoryComposition, WithStages) {
  for (const std::string name : {"gpt", "gpt2", "transformer", "bert", "resnet"}) {
    const auto run = [&](const std::string& strategy) {
      Values all;
      std::mutex mutex;
      run_threads(2, [&](const World& world) {
        const auto model = make_parity_model(name, torch::kDouble);
        const Pipeline pipe = pipeline(model, world, PipelineOptions().schedule("1f1b"));
        const MemorySaving saved = saving(model, strategy);
        torch::optim::SGD optimizer(pipe.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          PipelineBatch batch;
          batch.num_micro_batches = 3;
          batch.loss = [&, step](int i) { return model->loss(model->forward(model->input(step, i)), step, i); };
          batch.tensors = [&, step](int i) { return std::vector{model->input(step, i)}; };
          batch.weights.assign(3, 1);
          pipe.run(batch, true);
          optimizer.step();
        }
        const bool has_dropped = strategy == "basic" || saved.report().num_dropped > 0;
        require(has_dropped, name + ", " + strategy + ": nothing was dropped");
        const std::lock_guard lock(mutex);
        for (const StateSlice& one : pipe.state_slices()) {
          if (one.slice.is_whole()) all[one.name] = one.values.clone();
        }
      });
      return all;
    };
    const Values expected = run("basic");
    require_same(run("standard"), expected, name + ", standard");
    require_same(run("aggressive"), expected, name + ", aggressive");
  }
}

}  // namespace
}  // namespace tessera::testing
