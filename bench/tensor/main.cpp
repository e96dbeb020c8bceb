// One rank of the contest in tensor parallelism of a GPT (see gpt/contest.h):
//   alone         the whole model, and nobody talks
//   ours          the same model, cut by a plan
//   hand_written  a model written for it
// All ranks have the same batch.
#include <tessera/core/error.h>
#include <tessera/mesh/ranks.h>
#include <tessera/optim/adamw.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>

#include "gpt/contest.h"
#include "tensor/hand_written.h"
#include "tensor/plan.h"

namespace bench {
namespace {

class TensorTrainer : public Trainer {
 public:
  TensorTrainer(const std::string& kind, const tessera::World& world, const GptShape& shape)
      : batch_(make_batch(0, shape)), model_(make_gpt(shape)) {
    if (kind == "ours") {
      cut_.emplace(tessera::tensor_parallel(model_, world, plan_of(shape)));
    } else if (kind == "hand_written") {
      hand_written_.emplace(model_, shape, world.comm());
    } else if (kind != "alone") {
      throw tessera::ConfigError("expected alone, ours or hand_written, found \"" + kind + "\"");
    }
    optimizer_.emplace(hand_written_ ? hand_written_->parameters() : model_->parameters(),
                       tessera::optim::AdamWOptions(3e-4));
  }

  double step(tessera::observe::Observer* /*observer*/) override {
    optimizer_->zero_grad();
    const at::Tensor loss = hand_written_ ? hand_written_->loss(batch_) : loss_of(model_, batch_);
    loss.backward();
    optimizer_->step();
    return loss.item<double>();
  }

 private:
  Batch batch_;
  Gpt model_;
  std::optional<tessera::TensorParallelModel> cut_;
  std::optional<HandWrittenGpt> hand_written_;
  std::optional<tessera::optim::AdamW> optimizer_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::answer_lines(argc, argv, [](const auto& kind, const auto& world, const auto& shape) {
    return std::make_unique<bench::TensorTrainer>(kind, world, shape);
  });
}
