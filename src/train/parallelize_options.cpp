#include <tessera/train/parallelize.h>

namespace tessera {

const FieldList<ParallelizeOptions>& ParallelizeOptions::fields() {
  static const FieldList<ParallelizeOptions> list =
      FieldList<ParallelizeOptions>("parallel")
          .add("recompute", &ParallelizeOptions::recompute_,
               "Layers compute again in backward instead of keeping what it needs.")
          .add_enum("data_parallelism", &ParallelizeOptions::data_parallelism_,
                    {{"ddp", DataParallelism::kDdp}, {"fsdp", DataParallelism::kFsdp}},
                    "Whether each rank has all of the model, or a part of it.")
          .add("shard_ranks", &ParallelizeOptions::shard_ranks_,
               "With hybrid_shard: how many ranks hold one copy of the model together.")
          .section("ddp", &ParallelizeOptions::ddp_, DdpOptions::fields())
          .section("fsdp", &ParallelizeOptions::fsdp_, FsdpOptions::fields());
  return list;
}

}  // namespace tessera
