#pragma once

#include <tessera/comm/strategy.h>
#include <tessera/comm/topology.h>
#include <tessera/comm/world.h>
#include <tessera/flight/recorder.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/algorithms/tuning_table.h"
#include "comm/connector.h"
#include "comm/device/device_calls.h"
#include "comm/watch/watch.h"

namespace tessera::comm {

/// What all groups of a world share.
struct WorldContext {
  int rank = 0;
  int size = 1;
  std::string launcher;
  Topology topology = Topology::blocks(1, 1);
  std::chrono::milliseconds timeout{30000};
  CommunicationStrategy strategy = CommunicationStrategy::kBackend;
  TuningTable tuning;
  c10::intrusive_ptr<c10d::Store> store;  ///< null in a fake world
  std::shared_ptr<Connector> connector;
  bool checked = false;  ///< compare calls between ranks before they are made
  std::unique_ptr<flight::Recorder> recorder = std::make_unique<flight::Recorder>();
  /// Declared behind what it uses, so destroyed before. Null where ranks are threads or fake, and where start_watch()
  /// returns null.
  std::unique_ptr<Watch> watch;
  /// Of calls on devices; made by the first one. As the watch, which it uses.
  std::unique_ptr<DeviceCalls> device_calls;

  /// By the thread that makes calls.
  DeviceCalls& follow_device_calls() {
    if (!device_calls) device_calls = std::make_unique<DeviceCalls>(*recorder, watch.get());
    return *device_calls;
  }
  /// Why the job cannot go on; nothing while it can.
  std::optional<std::string> verdict() const {
    const auto of_watch = watch ? watch->verdict() : std::nullopt;
    return of_watch || !device_calls ? of_watch : device_calls->failure();
  }
};

}  // namespace tessera::comm

namespace tessera {

struct World::State {
  explicit State(std::shared_ptr<comm::WorldContext> shared);

  std::shared_ptr<comm::WorldContext> context;
  Communicator comm;
  std::shared_ptr<FakeTraffic> fake_traffic;  ///< of a fake world
};

namespace comm {

/// A context with what follows from the options alone. Throws ConfigError for invalid options.
std::shared_ptr<WorldContext> make_context(const WorldOptions& options, int rank, int size);

}  // namespace comm
}  // namespace tessera
