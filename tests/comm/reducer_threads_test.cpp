#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include "comm/reducer_case.h"

namespace tessera {
namespace {

TEST(Reducer, RunsOnRanksThatAreThreads) {
  for (const int num_ranks : {1, 2, 3}) {
    run_threads(num_ranks, [](const World& world) { testing::check_reducer(world.comm()); });
  }
}

TEST(Reducer, RunsOnASubgroup) {
  run_threads(4, [](const World& world) {
    testing::check_reducer(world.comm().split_by([](int rank) { return rank % 2; }, "dp"));
  });
}

}  // namespace
}  // namespace tessera
