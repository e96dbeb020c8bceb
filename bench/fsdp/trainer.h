#pragma once

#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/observe/observer.h>
#include <tessera/optim/adamw.h>

#include <optional>
#include <string>

#include "gpt/contest.h"

namespace bench {

class ShardedTrainer : public Trainer {
 public:
  /// `kind`: "alone" (nobody talks), "ddp", or "fsdp" (a unit for each block). Throws ConfigError for others.
  ShardedTrainer(const std::string& kind, const tessera::World& world, const GptShape& shape, const at::Device& device);

  /// With an observer the parts of the step are in its trace, block by block.
  double step(tessera::observe::Observer* observer) override;

 private:
  class BlockSpans;

  Batch batch_;
  Gpt model_;
  std::optional<tessera::DistributedModel> replicated_;
  std::optional<tessera::ShardedModel> sharded_;
  std::optional<tessera::optim::AdamW> optimizer_;
};

}  // namespace bench
