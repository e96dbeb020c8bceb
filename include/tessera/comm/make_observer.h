#pragma once

#include <tessera/comm/world.h>
#include <tessera/observe/observer.h>

#include <memory>

namespace tessera {

/// An observer of this rank. The ranks in `run` are set from the world. With a trace, every call of every Communicator
/// of this world is in it, and the clocks of the ranks are compared.
/// Collective: over the world, when `options.trace` is set. It takes O(log N) times O(log N) small messages.
/// Throws as observe::Observer does, and ConfigError when the world is being traced already.
std::unique_ptr<observe::Observer> make_observer(const World& world, const ObserveOptions& options,
                                                 observe::RunDescription run = {});

/// Compares the clocks again, for traces of hours: clocks drift apart. The time between comparisons is evened out when
/// traces are merged. Does nothing without a trace.
/// Collective: over the world, when there is a trace.
void compare_clocks(const World& world, observe::Observer& observer);

}  // namespace tessera
