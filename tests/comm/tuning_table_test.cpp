#include "comm/algorithms/tuning_table.h"

#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/error_message.h"
#include "support/temporary_file.h"

namespace tessera::comm {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFile;
using Strategy = CommunicationStrategy;

const TuningTable kTable({{"shm", 2, 0, false, Strategy::kBackend},
                          {"gloo", 0, 1000, false, Strategy::kTree},
                          {"gloo", 4, 0, false, Strategy::kRing},
                          {"*", 0, 0, true, Strategy::kHierarchical}});

TEST(TuningTable, TakesTheFirstRuleThatFits) {
  EXPECT_EQ(kTable.choose("shm", 2, false, 1), Strategy::kBackend);
  EXPECT_EQ(kTable.choose("gloo", 8, false, 1000), Strategy::kTree);
  EXPECT_EQ(kTable.choose("gloo", 4, false, 1001), Strategy::kRing);
  EXPECT_EQ(kTable.choose("gloo", 4, true, 1), Strategy::kHierarchical);
  EXPECT_EQ(kTable.choose("mpi", 4, true, 1), Strategy::kHierarchical);
}

TEST(TuningTable, LeavesTheRestToTheBackend) {
  EXPECT_EQ(kTable.choose("gloo", 5, false, 1001), Strategy::kBackend);
  EXPECT_EQ(TuningTable(std::vector<TuningTable::Rule>{}).choose("gloo", 5, true, 1), Strategy::kBackend);
}

TEST(TuningTable, ComesBackFromItsFile) {
  const TemporaryFile file(kTable.to_json());
  const TuningTable read = TuningTable::load(file.path());
  EXPECT_EQ(read.to_json(), kTable.to_json());
  ASSERT_EQ(read.rules().size(), kTable.rules().size());
  EXPECT_EQ(read.rules()[1].backend, "gloo");
  EXPECT_EQ(read.rules()[1].max_bytes, 1000);
  EXPECT_EQ(read.rules()[2].max_ranks, 4);
  EXPECT_TRUE(read.rules()[3].several_nodes);
}

TEST(TuningTable, TheBuiltInOneIsValid) {
  const TemporaryFile file(TuningTable::built_in().to_json());
  EXPECT_EQ(TuningTable::load(file.path()).to_json(), TuningTable().to_json());
}

TEST(TuningTable, AFaultIsReportedWithTheFile) {
  const std::string rule =
      R"({"backend": "*", "max_ranks": 0, "max_bytes": 0, "several_nodes": false, "strategy": "ring"})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = R"({"version": 1, "rules": [)" + rule + "]}";
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  EXPECT_NO_THROW(TuningTable::load(TemporaryFile(with("ring", "tree")).path()));
  const std::vector<std::string> faulty = {"",
                                           "[]",
                                           "{\"version\": 1",
                                           with("\"version\": 1", "\"version\": 2"),
                                           with("\"version\": 1, ", ""),
                                           with("\"ring\"", "\"rung\""),
                                           with("\"ring\"", "\"adaptive\""),
                                           with("\"ring\"", "7"),
                                           with("\"max_ranks\": 0, ", ""),
                                           with("\"max_bytes\": 0", "\"max_bytes\": \"many\""),
                                           with("false", "\"no\"")};
  for (const auto& text : faulty) {
    const TemporaryFile file(text);
    expect_parts(message_of<ConfigError>([&] { TuningTable::load(file.path()); }), {file.path(), "tuning table"});
  }
  expect_parts(message_of<ConfigError>([] { TuningTable::load("/nowhere/table.json"); }), {"/nowhere/table.json"});
}

TEST(TuningTable, TheWorldsFileDecidesTheAdaptiveStrategy) {
  // On rank 1 of 8 a ring sends 14 messages for an all_reduce; the tree sends one, to rank 0.
  const TuningTable table({{"*", 0, 400, false, Strategy::kTree}, {"*", 0, 0, false, Strategy::kRing}});
  const TemporaryFile file(table.to_json());
  const auto messages_for = [&](std::int64_t count) {
    const World world = fake_world(1, 8, 8, WorldOptions().strategy("adaptive").tuning_file(file.path()));
    world.comm().all_reduce(at::zeros({count}));
    return fake_traffic(world).num_messages;
  };
  EXPECT_EQ(messages_for(100), 1U);
  EXPECT_EQ(messages_for(101), 14U);
}

TEST(TuningTable, AWorldRefusesAFaultyFile) {
  const TemporaryFile file("{}");
  expect_parts(message_of<ConfigError>([&] { fake_world(0, 2, 8, WorldOptions().tuning_file(file.path())); }),
               {file.path()});
  EXPECT_THROW(run_threads(2, [](const World&) {}, WorldOptions().tuning_file(file.path())), ConfigError);
}

}  // namespace
}  // namespace tessera::comm
