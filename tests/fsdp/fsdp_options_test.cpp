#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_options.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera {
namespace {

TEST(FsdpOptions, ListsEveryFieldThatHasATextForm) {
  EXPECT_EQ(FsdpOptions::fields().at("strategy").default_text(), "full_shard");
  EXPECT_EQ(FsdpOptions::fields().fields().size(), 16U);
}

TEST(FsdpOptions, ReadsStrategiesByName) {
  FsdpOptions options;
  FsdpOptions::fields().set_text(options, "strategy", "shard_grad_op");
  EXPECT_EQ(options.strategy(), ShardingStrategy::kShardGradOp);
  const auto text =
      testing::message_of<ConfigError>([&] { FsdpOptions::fields().set_text(options, "strategy", "zero3"); });
  testing::expect_parts(text, {"strategy", "zero3", "full_shard"});
}

TEST(WrapPolicy, RefusesWhatDecidesNothing) {
  const auto refusal_of = [](const auto& make) { return testing::message_of<ConfigError>(make); };
  testing::expect_parts(refusal_of([] { wrap_by_size(0); }), {"wrap_by_size needs a size above 0, found 0"});
  testing::expect_parts(refusal_of([] { wrap_by_type(std::vector<std::string>{}); }),
                        {"wrap_by_type needs the name of a module's type"});
  testing::expect_parts(refusal_of([] { WrapPolicy("mine", nullptr); }),
                        {"a wrap policy needs a function that decides", "\"mine\" has none"});
}

}  // namespace
}  // namespace tessera
