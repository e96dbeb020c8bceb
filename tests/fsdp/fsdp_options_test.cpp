#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_options.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera {
namespace {

TEST(FsdpOptions, ListsEveryFieldThatHasATextForm) {
  EXPECT_EQ(FsdpOptions::fields().at("strategy").default_text(), "full_shard");
  EXPECT_EQ(FsdpOptions::fields().fields().size(), 15U);
}

TEST(FsdpOptions, ReadsStrategiesByName) {
  FsdpOptions options;
  FsdpOptions::fields().set_text(options, "strategy", "shard_grad_op");
  EXPECT_EQ(options.strategy(), ShardingStrategy::kShardGradOp);
  const auto text =
      testing::message_of<ConfigError>([&] { FsdpOptions::fields().set_text(options, "strategy", "zero3"); });
  testing::expect_parts(text, {"strategy", "zero3", "full_shard"});
}

}  // namespace
}  // namespace tessera
