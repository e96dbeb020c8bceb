#include "fsdp/trainer.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <memory>
#include <utility>

namespace bench {

/// The compute track of a trace, cut at the bounds of blocks: in forward when a block is called, in backward when the
/// gradient of its input is there.
class ShardedTrainer::BlockSpans {
 public:
  BlockSpans(Gpt& model, tessera::observe::Observer* observer) : model_(model), observer_(observer) {
    if (observer_ != nullptr) watch();
  }
  ~BlockSpans() { model_->watch_blocks(nullptr); }
  BlockSpans(const BlockSpans&) = delete;
  BlockSpans& operator=(const BlockSpans&) = delete;

  void begin(const std::string& name) {
    if (observer_ == nullptr) return;
    span_ = nullptr;  // ends the one before
    span_ = std::make_unique<tessera::observe::Span>(observer_->tracer(), name);
  }

 private:
  void watch() {
    const auto num_blocks = static_cast<std::int64_t>(model_->named_children()["blocks"]->children().size());
    model_->watch_blocks([this, num_blocks](std::int64_t block, const at::Tensor& x) {
      begin("forward " + (block == num_blocks ? "head" : std::to_string(block)));
      x.register_hook([this, block](const at::Tensor& /*gradient*/) {
        begin("backward " + (block == 0 ? "embedding" : std::to_string(block - 1)));
      });
    });
  }

  Gpt& model_;
  tessera::observe::Observer* observer_;
  std::unique_ptr<tessera::observe::Span> span_;
};

ShardedTrainer::ShardedTrainer(const std::string& kind, const tessera::World& world, const GptShape& shape,
                               const at::Device& device)
    : batch_(make_batch(world.rank(), shape).on(device)), model_(make_gpt(shape)) {
  if (!device.is_cpu()) model_->to(device);
  if (kind == "ddp") {
    replicated_.emplace(tessera::distribute(model_, world));
  } else if (kind == "fsdp") {
    const auto options = tessera::FsdpOptions().auto_wrap(tessera::wrap_by_type<BlockImpl>());
    sharded_.emplace(tessera::fully_shard(model_, world, options));
  } else if (kind != "alone") {
    throw tessera::ConfigError("expected alone, ddp or fsdp, found \"" + kind + "\"");
  }
  optimizer_.emplace(sharded_ ? sharded_->parameters() : model_->parameters(), tessera::optim::AdamWOptions(3e-4));
}

double ShardedTrainer::step(tessera::observe::Observer* observer) {
  BlockSpans spans(model_, observer);
  optimizer_->zero_grad();
  spans.begin("forward embedding");
  const at::Tensor loss = loss_of(model_, batch_);
  spans.begin("backward head");
  loss.backward();
  spans.begin("optimizer");
  optimizer_->step();
  return loss.item<double>();
}

}  // namespace bench
