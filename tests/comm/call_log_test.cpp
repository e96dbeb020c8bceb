#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <source_location>
#include <string_view>

namespace tessera {
namespace {

std::uint32_t line_here(std::source_location where = std::source_location::current()) { return where.line(); }

TEST(CallLog, RecordsEveryOperationWithTheLineOfItsCaller) {
  const World world = fake_world(1, 4);
  const Communicator& comm = world.comm();
  const at::Tensor tensor = at::zeros({8});
  const auto first_line = line_here() + 1;
  comm.all_reduce(tensor);
  comm.all_reduce_async(tensor).wait();
  comm.all_gather(tensor);
  comm.reduce_scatter(tensor);
  comm.broadcast(tensor, 0);
  comm.reduce(tensor, 0);
  comm.gather(tensor, 0);
  comm.scatter(tensor, 0);
  comm.all_to_all(tensor);
  comm.barrier();
  comm.send(tensor, 0);
  comm.recv(tensor, 0);
  comm.recv({2}, at::kFloat, 0);
  const auto calls = comm.recent_calls();
  const std::vector<const char*> operations = {"all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                               "reduce",     "gather",     "scatter",    "all_to_all",     "barrier",
                                               "send",       "recv",       "recv"};
  ASSERT_EQ(calls.size(), operations.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].operation, operations[i]);
    EXPECT_EQ(calls[i].line, first_line + i) << operations[i];
    EXPECT_TRUE(std::string_view(calls[i].file).ends_with("call_log_test.cpp")) << calls[i].file;
    EXPECT_EQ(calls[i].is_collective, i < 10) << operations[i];
    EXPECT_EQ(calls[i].sequence, i < 10 ? i + 1 : i - 9) << "messages are counted apart";
    EXPECT_EQ(calls[i].group, "world");
    EXPECT_EQ(calls[i].state, CallState::kDone) << operations[i];
  }
  EXPECT_EQ(calls[0].shape, std::vector<std::int64_t>{8});
  EXPECT_EQ(calls[0].dtype, "Float");
  EXPECT_EQ(calls[9].dtype, "") << "a barrier moves nothing";
}

TEST(CallLog, TellsTheGroupAndCountsEachOneAlone) {
  const World world = fake_world(1, 4);
  const Communicator pair = world.comm().split({0, 1}, "dp");
  world.comm().barrier();
  pair.barrier();
  world.comm().barrier();
  const auto calls = pair.recent_calls();
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[1].group, pair.name());
  EXPECT_EQ(calls[1].sequence, 1U);
  EXPECT_EQ(calls[2].group, "world");
  EXPECT_EQ(calls[2].sequence, 2U);
}

TEST(CallLog, ShowsARefusedCallAsFailed) {
  const World world = fake_world(0, 2);
  EXPECT_THROW(world.comm().broadcast(at::zeros({1}), 2), ConfigError);
  EXPECT_THROW(world.comm().all_reduce(at::zeros({1}, at::kLong), ReduceOp::kAvg), ConfigError);
  for (const auto& call : world.comm().recent_calls()) EXPECT_EQ(call.state, CallState::kFailed) << to_string(call);
}

TEST(CallLog, ShowsAnOperationUnderWayAsStarted) {
  run_threads(2, [](const World& world) {
    const Communicator& comm = world.comm();
    if (world.rank() == 0) {
      Work work = comm.all_reduce_async(at::zeros({4}));
      EXPECT_EQ(comm.recent_calls().back().state, CallState::kStarted);
      comm.send(at::zeros({1}), 1);  // only now does the other rank come
      work.wait();
    } else {
      comm.recv({1}, at::kFloat, 0);
      comm.all_reduce(at::zeros({4}));
    }
    for (const auto& call : comm.recent_calls()) EXPECT_EQ(call.state, CallState::kDone) << to_string(call);
  });
}

}  // namespace
}  // namespace tessera
