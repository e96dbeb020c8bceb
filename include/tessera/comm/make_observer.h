#pragma once

#include <tessera/comm/world.h>
#include <tessera/observe/observer.h>

#include <memory>
#include <optional>

namespace tessera {

/// An observer of this rank. The ranks in `run` are set from the world. With a trace, every call of every Communicator
/// of this world is in it, and the clocks of the ranks are compared.
/// `device`: the accelerator that this rank trains on, whose time and memory are figures too; `at::kCPU`: none. Left
/// out, it is the current device, if the process uses it by now: make the observer after the model is there. It waits
/// once for what the device was given, to compare clocks.
/// Collective: over the world, when `options.trace` is set. It takes O(log N) times O(log N) small messages.
/// Throws as observe::Observer does, and ConfigError when the world is being traced already.
std::unique_ptr<observe::Observer> make_observer(const World& world, const ObserveOptions& options,
                                                 observe::RunDescription run = {},
                                                 std::optional<at::Device> device = std::nullopt);

/// Compares the clocks again, for traces of hours: clocks drift apart. The time between comparisons is evened out when
/// traces are merged. On an accelerator also the device's with the host's, which waits for the device. Does nothing
/// without a trace.
/// Collective: over the world, when there is a trace.
void compare_clocks(const World& world, observe::Observer& observer);

}  // namespace tessera
