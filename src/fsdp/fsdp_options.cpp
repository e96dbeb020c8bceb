#include <tessera/fsdp/fsdp_options.h>

namespace tessera {

const FieldList<FsdpOptions>& FsdpOptions::fields() {
  static const FieldList<FsdpOptions> list =
      FieldList<FsdpOptions>("fsdp")
          .add_enum("strategy", &FsdpOptions::strategy_,
                    {{"full_shard", ShardingStrategy::kFullShard},
                     {"shard_grad_op", ShardingStrategy::kShardGradOp},
                     {"zero1", ShardingStrategy::kZero1},
                     {"no_shard", ShardingStrategy::kNoShard},
                     {"hybrid_shard", ShardingStrategy::kHybridShard}},
                    "What is sharded.")
          .add("min_num_params", &FsdpOptions::min_num_params_,
               "Parameters with fewer elements stay whole on every rank.")
          .add_enum(
              "backward_prefetch", &FsdpOptions::backward_prefetch_,
              {{"pre", BackwardPrefetch::kPre}, {"post", BackwardPrefetch::kPost}, {"none", BackwardPrefetch::kNone}},
              "When backward's next parameters are gathered.")
          .add("forward_prefetch", &FsdpOptions::forward_prefetch_,
               "Whether forward's next parameters are gathered before they are used.")
          .add("limit_all_gathers", &FsdpOptions::limit_all_gathers_, "At most one unit is gathered ahead.")
          .add("use_orig_params", &FsdpOptions::use_orig_params_,
               "The optimizer's parameters are slices of the model's, one for each.")
          .add("init_sync", &FsdpOptions::init_sync_, "At the start every rank takes rank 0's parameters and buffers.")
          .add("broadcast_buffers", &FsdpOptions::broadcast_buffers_,
               "Before each forward in training every rank takes rank 0's buffers.");
  return list;
}

}  // namespace tessera
