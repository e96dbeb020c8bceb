// One rank of the contest in pipelines of a GPT (see gpt/contest.h). A kind is a name and a number of micro-batches:
//   alone/8     the whole model, and nobody talks
//   stages/8    the layers of this rank's stage alone, fed with zeros, and nobody talks
//   tiny/8      20 times the forwards of a model with as many layers that are too small to compute anything
//   ghosts/8    the same, each after one without bytes
//   1f1b/8      ours, with that schedule
// All ranks have the same batch.
#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>
#include <tessera/pipeline/pipeline.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpt/contest.h"

namespace tessera {

/// Targets lie one behind the other, as many for each sequence as it has tokens.
template <>
struct MicroBatches<bench::Batch> {
  static std::vector<bench::Batch> split(const bench::Batch& batch, int num_micro_batches) {
    const auto tokens = pp::split_tensor(batch.tokens, num_micro_batches);
    const auto targets = pp::split_tensor(batch.targets.view(batch.tokens.sizes()), num_micro_batches);
    std::vector<bench::Batch> micros;
    for (std::size_t i = 0; i < tokens.size(); ++i) micros.push_back({tokens[i], targets[i].reshape({-1})});
    return micros;
  }
  static std::vector<at::Tensor> tensors(const bench::Batch& batch) { return {batch.tokens, batch.targets}; }
};

}  // namespace tessera

namespace bench {
namespace {

using tessera::Pipeline;
using tessera::PipelineOptions;

/// The layers with which stages begin: the head costs as much as a layer and a third.
std::vector<std::string> cuts(int num_stages) {
  if (num_stages == 1) return {};
  if (num_stages == 2) return {"blocks.4"};
  return {"blocks.2", "blocks.4", "norm"};
}

class Alone : public Trainer {
 public:
  Alone(const GptShape& shape, int num_micro_batches)
      : micros_(tessera::MicroBatches<Batch>::split(make_batch(0, shape), num_micro_batches)),
        model_(make_gpt(shape)),
        optimizer_(model_->parameters(), tessera::optim::AdamWOptions(3e-4)) {}

  double step(tessera::observe::Observer* /*observer*/) override {
    optimizer_.zero_grad();
    double sum = 0;
    for (const Batch& micro : micros_) {
      const at::Tensor loss = loss_of(model_, micro) / static_cast<double>(micros_.size());
      loss.backward();
      sum += loss.item<double>();
    }
    optimizer_.step();
    return sum;
  }

 private:
  std::vector<Batch> micros_;
  Gpt model_;
  tessera::optim::AdamW optimizer_;
};

/// The computations of one of two stages.
class Stage : public Trainer {
 public:
  Stage(const GptShape& shape, int num_micro_batches, bool is_first)
      : shape_(shape),
        micros_(tessera::MicroBatches<Batch>::split(make_batch(0, shape), num_micro_batches)),
        model_(make_gpt(shape)),
        is_first_(is_first) {
    std::vector<at::Tensor> parameters;
    bool is_second = false;
    for (const auto& item : model_->named_parameters()) {
      is_second = is_second || item.key().starts_with("blocks.4");
      if (is_second != is_first_) parameters.push_back(item.value());
    }
    optimizer_.emplace(parameters, tessera::optim::AdamWOptions(3e-4));
  }

  double step(tessera::observe::Observer* /*observer*/) override {
    optimizer_->zero_grad();
    const auto modules = model_->named_modules("", /*include_self=*/false);
    for (const Batch& micro : micros_) {
      at::Tensor x;
      if (is_first_) {
        x = modules["tokens"]->as<torch::nn::Embedding>()->forward(micro.tokens) +
            modules["positions"]->as<torch::nn::Embedding>()->forward(at::arange(micro.tokens.size(1)));
      } else {
        x = at::zeros({micro.tokens.size(0), shape_.sequence, shape_.width}).requires_grad_();
      }
      for (std::int64_t i = is_first_ ? 0 : 4; i < (is_first_ ? 4 : shape_.layers); ++i) {
        x = modules["blocks." + std::to_string(i)]->as<BlockImpl>()->forward(x);
      }
      if (is_first_) {
        x.backward(at::ones_like(x));
        continue;
      }
      const at::Tensor logits =
          at::linear(modules["norm"]->as<torch::nn::LayerNorm>()->forward(x), modules["head"]->parameters().front());
      (at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), micro.targets) / static_cast<double>(micros_.size()))
          .backward();
    }
    optimizer_->step();
    return 0;
  }

 private:
  GptShape shape_;
  std::vector<Batch> micros_;
  Gpt model_;
  bool is_first_;
  std::optional<tessera::optim::AdamW> optimizer_;
};

class Staged : public Trainer {
 public:
  Staged(const tessera::World& world, const GptShape& shape, int num_micro_batches, const PipelineOptions& options)
      : num_micro_batches_(num_micro_batches),
        batch_(make_batch(0, shape)),
        model_(make_gpt(shape)),
        pipe_(tessera::pipeline(model_, world, options)),
        optimizer_(model_->parameters(), tessera::optim::AdamWOptions(3e-4)) {}

  double step(tessera::observe::Observer* /*observer*/) override {
    optimizer_.zero_grad();
    const at::Tensor loss =
        pipe_.step(batch_, num_micro_batches_, [this](const Batch& micro) { return loss_of(model_, micro); });
    optimizer_.step();
    return loss.item<double>();
  }

 private:
  int num_micro_batches_;
  Batch batch_;
  Gpt model_;
  Pipeline pipe_;
  tessera::optim::AdamW optimizer_;
};

/// Forwards of a model whose layers are too small to compute anything. What a ghost costs does not depend on its size.
class TinyForwards : public Trainer {
 public:
  static constexpr int kTurns = 20;

  /// `has_ghosts`: each runs without bytes first.
  TinyForwards(int num_micro_batches, bool has_ghosts)
      : num_micro_batches_(num_micro_batches),
        shape_{.width = 8, .heads = 2, .vocabulary = 16, .sequence = 4, .batch = num_micro_batches},
        batch_(make_batch(0, shape_)),
        model_(make_gpt(shape_)),
        world_(tessera::fake_world(0, 1)),
        pipe_(tessera::pipeline(model_, world_, PipelineOptions().dynamic(has_ghosts).num_checked_steps(0))) {}

  double step(tessera::observe::Observer* /*observer*/) override {
    for (int i = 0; i < kTurns; ++i) {
      pipe_.evaluate(batch_, num_micro_batches_, [this](const Batch& micro) { return loss_of(model_, micro); });
    }
    return 0;
  }

 private:
  int num_micro_batches_;
  GptShape shape_;
  Batch batch_;
  Gpt model_;
  tessera::World world_;
  Pipeline pipe_;
};

std::unique_ptr<Trainer> make_trainer(const std::string& kind, const tessera::World& world, const GptShape& shape) {
  const std::size_t slash = kind.find('/');
  if (slash == std::string::npos) {
    throw tessera::ConfigError("expected a name and a number of micro-batches, \"1f1b/8\", found \"" + kind + "\"");
  }
  const std::string name = kind.substr(0, slash);
  const int num_micro_batches = std::stoi(kind.substr(slash + 1));
  if (name == "alone") return std::make_unique<Alone>(shape, num_micro_batches);
  if (name == "stages") return std::make_unique<Stage>(shape, num_micro_batches, world.rank() == 0);
  if (name == "ghosts" || name == "tiny") return std::make_unique<TinyForwards>(num_micro_batches, name == "ghosts");
  const bool has_chunks = name == "interleaved" || name == "zb-v";
  return std::make_unique<Staged>(world, shape, num_micro_batches,
                                  PipelineOptions().schedule(name).split(cuts(world.size() * (has_chunks ? 2 : 1))));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::answer_lines(argc, argv, bench::make_trainer); }
