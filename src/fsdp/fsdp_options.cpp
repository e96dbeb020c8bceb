#include <tessera/fsdp/fsdp_options.h>

namespace tessera {

namespace {

const std::vector<std::pair<std::string, c10::ScalarType>>& dtypes() {
  static const std::vector<std::pair<std::string, c10::ScalarType>> names{{"same", c10::ScalarType::Undefined},
                                                                          {"float64", c10::ScalarType::Double},
                                                                          {"float32", c10::ScalarType::Float},
                                                                          {"bfloat16", c10::ScalarType::BFloat16},
                                                                          {"float16", c10::ScalarType::Half}};
  return names;
}

}  // namespace

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
          .add("max_unit_bytes", &FsdpOptions::max_unit_bytes_,
               "A module with more bytes of parameters becomes several units; 0: never.")
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
               "Before each forward in training, and after backward, every rank takes rank 0's buffers.")
          .add("shared_copy", &FsdpOptions::shared_copy_,
               "Where ranks share memory, the parameters lie there once and nothing is gathered.")
          .add_enum("param_dtype", &FsdpOptions::param_dtype_, dtypes(),
                    "In which parameters are gathered and used; shards keep their own type.")
          .add_enum("reduce_dtype", &FsdpOptions::reduce_dtype_, dtypes(), "In which gradients are averaged.")
          .add("keep_low_precision_grads", &FsdpOptions::keep_low_precision_grads_,
               "The gradients of shards stay in `reduce_dtype`.")
          .add_enum("buffer_dtype", &FsdpOptions::buffer_dtype_, dtypes(), "The type of floating-point buffers.")
          .add("reproducible", &FsdpOptions::reproducible_,
               "The same weights, bit for bit, on any power of two of ranks and with every strategy.")
          .add("micro_batches", &FsdpOptions::micro_batches_,
               "With reproducible: the micro-batches of a step over all ranks, a power of two.");
  return list;
}

}  // namespace tessera
