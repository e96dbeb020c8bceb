// Sharded models whose parameters act: their bytes lie in a flat parameter, and operators compute with aliases of them.
#include <gtest/gtest.h>

#include "fsdp/chain.h"
#include "support/box_kind.h"

namespace tessera::testing {
namespace {

const BoxKind& kind() {
  static const BoxKind box;
  return box;
}

struct MarkedChain : Chain {
  MarkedChain() {
    for (const at::Tensor& parameter : parameters()) intercept::mark_acting(parameter, kind().data());
  }
};

TEST(ShardedActing, ParametersAreTrainedAsInOneProcess) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const auto strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1}) {
      const int before = kind().num_calls;
      expect_same_as_alone<MarkedChain>({.pass = one_backward<MarkedChain>,
                                         .num_ranks = num_ranks,
                                         .options = small_units().strategy(strategy).min_num_params(9)});
      EXPECT_GT(kind().num_calls, before);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
