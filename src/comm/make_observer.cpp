#include <tessera/comm/make_observer.h>
#include <tessera/core/error.h>
#include <tessera/flight/clock.h>

#include <utility>

#include "comm/clock_comparison.h"
#include "comm/world_state.h"

namespace tessera {

std::unique_ptr<observe::Observer> make_observer(const World& world, const ObserveOptions& options,
                                                 observe::RunDescription run) {
  run.rank = world.rank();
  run.num_ranks = world.size();
  auto observer = std::make_unique<observe::Observer>(options, std::move(run));
  if (!observer->tracer()) return observer;
  // First the clocks, so that the comparison itself is not in the trace.
  compare_clocks(world, *observer);
  if (!world.state().context->recorder->listen(observer->tracer())) {
    throw ConfigError("rank " + std::to_string(world.rank()) +
                      " is being traced by another observer; close and destroy that one first");
  }
  return observer;
}

void compare_clocks(const World& world, observe::Observer& observer) {
  if (!observer.tracer() || world.launcher() == "fake") return;
  observer.tracer()->add_clock(comm::compare_clocks(world.comm(), flight::now_ns));
}

}  // namespace tessera
