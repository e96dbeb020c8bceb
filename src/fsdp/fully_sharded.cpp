#include <tessera/fsdp/fully_sharded.h>

#include <ATen/core/grad_mode.h>

#include "fsdp/fsdp_state.h"

namespace tessera {

ShardedBlock::ShardedBlock(const std::shared_ptr<torch::nn::Module>& block, const Ranks& ranks,
                           const FsdpOptions& options)
    : handle_(fsdp::shard_block(block, ranks, options)) {
  register_module("block", block);
}

ShardedBlock::Forward::Forward(const ShardedModel& handle) : handle_(handle) { handle_.state()->enter_forward(); }
ShardedBlock::Forward::~Forward() { handle_.state()->leave_forward(); }

void ShardedBlock::gather_again_at(const at::Tensor& output) const {
  if (!at::GradMode::is_enabled() || !output.defined() || !output.requires_grad() || output.is_leaf()) return;
  output.register_hook([weak = std::weak_ptr(handle_.state())](const at::Tensor& /*gradient*/) {
    if (const auto state = weak.lock()) state->enter_backward();
  });
}

std::vector<ShardedModel> sharded_blocks_of(const torch::nn::Module& model) {
  std::vector<ShardedModel> blocks;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (const auto* block = dynamic_cast<const ShardedBlock*>(module.get())) blocks.push_back(block->handle());
  }
  if (const auto* self = dynamic_cast<const ShardedBlock*>(&model)) blocks.insert(blocks.begin(), self->handle());
  return blocks;
}

std::vector<at::Tensor> parameters_of(const std::vector<ShardedModel>& blocks) {
  std::vector<at::Tensor> parameters;
  for (const ShardedModel& block : blocks) {
    const auto own = block.parameters();
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  return parameters;
}

}  // namespace tessera
