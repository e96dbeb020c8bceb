#include <tessera/core/error.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/three_d_parallelism.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Config = ThreeDParallelismConfig;

std::string refusal(const Config& config, int world_size) {
  try {
    config.validate(world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ThreeDParallelismConfig, HasTheDocumentedDefaults) {
  const Config config;
  EXPECT_EQ(config.sizes(), (ThreeDSizes{1, 1, 1}));
  EXPECT_EQ(config.axis_order(), (std::vector<std::string>{"dp", "tp", "pp"}));
  EXPECT_EQ(config.num_layers(), 24);
  EXPECT_EQ(config.micro_batch_size(), 1);
  EXPECT_EQ(config.memory_strategy(), MemoryStrategy::kStandard);
  EXPECT_EQ(config.communication_strategy(), CommunicationStrategy::kBackend);
  EXPECT_FALSE(config.gradient_checkpointing());
  EXPECT_FALSE(config.mixed_precision());
  EXPECT_EQ(config.pipeline_schedule(), PipelineScheduleKind::kInterleaved);
  EXPECT_EQ(config.memory_limit_bytes(), 8'589'934'592);
  EXPECT_EQ(config.communication_timeout(), std::chrono::seconds(30));
  EXPECT_EQ(refusal(config, 1), "");
}

TEST(ThreeDParallelismConfig, AcceptsAProductThatIsTheWorldSize) {
  EXPECT_EQ(refusal(Config().dp(4).tp(2).pp(2), 16), "");
}

TEST(ThreeDParallelismConfig, RefusesAnotherProductWithTheNearestSizes) {
  const auto message = refusal(Config().dp(4).tp(2).pp(2), 8);
  EXPECT_NE(message.find("need 16 ranks, the world has 8: use {dp: 2, tp: 2, pp: 2}"), std::string::npos) << message;
}

TEST(ThreeDParallelismConfig, RefusesWithAllFaultsAtOnce) {
  const auto message = refusal(Config()
                                   .dp(3)
                                   .pp(4)
                                   .num_layers(2)
                                   .micro_batch_size(0)
                                   .memory_limit_bytes(-1)
                                   .memory_strategy(MemoryStrategy::kExtreme)
                                   .communication_timeout(std::chrono::milliseconds(-1))
                                   .axis_order({"dp", "tp"}),
                               8);
  for (const char* fault :
       {"need 12 ranks, the world has 8", "num_layers is 2 for 4 pipeline stages: use pp of 2", "micro_batch_size is 0",
        "memory_limit_bytes is -1", "communication_timeout is -1 ms", "memory_strategy is extreme",
        "axis_order is {dp, tp}: list each of {dp, tp, pp} exactly once"}) {
    EXPECT_NE(message.find(fault), std::string::npos) << fault << "\nis missing in\n" << message;
  }
}

TEST(ThreeDParallelismConfig, RefusesSizesBelowOneAndAnEmptyWorld) {
  const auto message = refusal(Config().dp(-2).tp(-1), 0);
  EXPECT_NE(message.find("dp is -2"), std::string::npos) << message;
  EXPECT_NE(message.find("tp is -1"), std::string::npos) << message;
  EXPECT_NE(message.find("the world has 0 ranks"), std::string::npos) << message;
}

TEST(ThreeDParallelismConfig, TakesAsManyCopiesAsTheRanksAllow) {
  EXPECT_EQ(Config().dp(0).tp(2).pp(2).for_world(12).sizes(), (ThreeDSizes{3, 2, 2}));
  EXPECT_EQ(refusal(Config().dp(0).tp(2).pp(2), 12), "");
  EXPECT_NE(refusal(Config().dp(0).tp(2).pp(2), 10).find("start a multiple of 4 ranks"), std::string::npos);
  const auto mesh = make_mesh(fake_world(0, 8), Config().dp(0).tp(2));
  EXPECT_EQ(mesh["dp"].size(), 4);
}

TEST(ThreeDParallelismConfig, TakesZeroForWhatTheModelAndTheWorldHave) {
  EXPECT_EQ(
      refusal(Config().pp(4).num_layers(0).memory_limit_bytes(0).communication_timeout(std::chrono::milliseconds(0)),
              4),
      "");
  EXPECT_EQ(refusal(Config().micro_batch_size(0), 1), "");
  EXPECT_NE(refusal(Config().micro_batch_size(-1), 1).find("micro_batch_size is -1"), std::string::npos);
  EXPECT_NE(refusal(Config().num_layers(-1), 1).find("num_layers is -1"), std::string::npos);
}

TEST(ThreeDParallelismConfig, InterleavingNeedsTwoLayersAStage) {
  const auto config = Config().pp(4).num_layers(7);
  EXPECT_NE(refusal(config, 4).find("use pp of 3 or less, or pipeline_schedule 1f1b"), std::string::npos);
  EXPECT_EQ(refusal(Config(config).pipeline_schedule(PipelineScheduleKind::kOneForwardOneBackward), 4), "");
  const auto v_shaped = Config(config).pipeline_schedule(PipelineScheduleKind::kZeroBubbleV);
  EXPECT_NE(refusal(v_shaped, 4).find("pipeline_schedule zb-v needs two layers a stage"), std::string::npos);
  EXPECT_EQ(refusal(Config(config).num_layers(8), 4), "");
  EXPECT_EQ(refusal(Config().num_layers(1), 1), "");
}

TEST(ThreeDParallelismConfig, SpreadsLayersAndSaysWhenTheyAreUneven) {
  EXPECT_EQ(Config().pp(4).layers_per_stage(), (std::vector<int>{6, 6, 6, 6}));
  EXPECT_EQ(Config().pp(4).uneven_stages_note(), std::nullopt);
  EXPECT_EQ(Config().pp(4).num_layers(10).layers_per_stage(), (std::vector<int>{3, 3, 2, 2}));
  EXPECT_TRUE(Config().pp(4).num_layers(10).uneven_stages_note().has_value());
  EXPECT_EQ(Config().pp(2).num_layers(4).layers_per_stage({1, 1, 1, 3}), (std::vector<int>{3, 1}));
  EXPECT_THROW(Config().layers_per_stage({1.0}), ConfigError);
}

TEST(ThreeDParallelismConfig, GradientCheckpointingRaisesBasicAndNeverLowers) {
  const auto effective = [](MemoryStrategy strategy, bool checkpointing) {
    return Config().memory_strategy(strategy).gradient_checkpointing(checkpointing).effective_memory_strategy();
  };
  EXPECT_EQ(effective(MemoryStrategy::kBasic, false), MemoryStrategy::kBasic);
  EXPECT_EQ(effective(MemoryStrategy::kBasic, true), MemoryStrategy::kStandard);
  EXPECT_EQ(effective(MemoryStrategy::kAggressive, true), MemoryStrategy::kAggressive);
  EXPECT_EQ(effective(MemoryStrategy::kExtreme, true), MemoryStrategy::kExtreme);
}

TEST(ThreeDParallelismConfig, EveryFieldIsReadFromText) {
  const auto& fields = Config::fields();
  EXPECT_EQ(fields.fields().size(), 13U);
  Config config;
  fields.set_text(config, "dp", "2");
  fields.set_text(config, "pipeline_schedule", "1f1b");
  fields.set_text(config, "memory_strategy", "extreme");
  fields.set_text(config, "communication_strategy", "tree");
  fields.set_text(config, "communication_timeout", "5s");
  EXPECT_EQ(config.dp(), 2);
  EXPECT_EQ(config.pipeline_schedule(), PipelineScheduleKind::kOneForwardOneBackward);
  EXPECT_EQ(config.memory_strategy(), MemoryStrategy::kExtreme);
  EXPECT_EQ(config.communication_strategy(), CommunicationStrategy::kTree);
  EXPECT_EQ(config.communication_timeout(), std::chrono::seconds(5));
  for (const auto& field : fields.fields()) {
    Config copy;
    fields.set_text(copy, field.key, fields.get_text(config, field.key));
    EXPECT_EQ(fields.get_text(copy, field.key), fields.get_text(config, field.key)) << field.key;
  }
}

TEST(ThreeDParallelismConfig, MeshAndRankMappingAgree) {
  const auto config = Config().dp(2).tp(4).pp(2).axis_order({"pp", "dp", "tp"});
  const auto world = fake_world(13, 16);
  const auto mesh = make_mesh(world, config);
  const auto mapping = config.rank_mapping(world.topology());
  for (int rank = 0; rank < 16; ++rank) {
    const auto at = mapping.coordinates(rank);
    EXPECT_EQ(mesh.coordinates(rank), (std::vector<int>{at.dp, at.tp, at.pp}));
  }
  EXPECT_EQ(mesh["dp"].world_ranks(), mapping.group_ranks("dp", 13));
}

TEST(ThreeDParallelismConfig, GroupsOfTheMeshFollowStrategyAndTimeout) {
  const auto mesh = make_mesh(fake_world(0, 8), Config()
                                                    .dp(8)
                                                    .communication_strategy(CommunicationStrategy::kRing)
                                                    .communication_timeout(std::chrono::seconds(7)));
  EXPECT_EQ(mesh["dp"].comm().strategy(), CommunicationStrategy::kRing);
  EXPECT_EQ(mesh["dp"].comm().timeout(), std::chrono::seconds(7));
}

TEST(ThreeDParallelismConfig, MakeMeshValidatesFirst) {
  EXPECT_THROW(make_mesh(fake_world(0, 8), Config().dp(8).micro_batch_size(-1)), ConfigError);
}

}  // namespace
}  // namespace tessera
