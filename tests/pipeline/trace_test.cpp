// What a traced step shows, and what is recorded of it.
#include <tessera/comm/make_observer.h>
#include <tessera/observe/tracer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "observe/trace_decoder.h"
#include "pipeline/timed.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

/// Of one rank, in their order.
std::vector<std::string> spans_in(const std::string& file) {
  std::vector<Slice> slices = read_trace(file);
  std::erase_if(slices, [](const Slice& one) { return one.category != "compute"; });
  std::ranges::stable_sort(slices, {}, &Slice::start_ns);
  std::vector<std::string> names;
  for (const Slice& one : slices) names.push_back(one.name);
  return names;
}

TEST(PipelineTrace, HasASpanForEachOperationInTheOrderOfTheSchedule) {
  const TemporaryFolder folder;
  PipelineSchedule schedule;
  run_threads(2, [&](const World& world) {
    TimedPipeline pipe(world, "zb-h1", 3, {});
    if (world.rank() == 0) schedule = pipe.schedule();
    const auto observer = make_observer(world, ObserveOptions().progress("off").trace(folder.file("t")));
    pipe.step();
    observer->close();
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> expected{"begin of a step: comparison of the ranks"};
    for (const auto& one : schedule.operations[static_cast<std::size_t>(rank)]) expected.push_back(to_string(one));
    // All that this rank has sent, shared parameters' gradients too.
    expected.emplace_back("end of a step: until the messages of this rank have left");
    expected.emplace_back("broadcast of the loss, from rank 1");
    EXPECT_EQ(spans_in(folder.file("t.rank" + std::to_string(rank) + ".pftrace")), expected);
  }
}

}  // namespace
}  // namespace tessera::testing
