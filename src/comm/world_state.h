#pragma once

#include <tessera/comm/world.h>

#include <memory>

#include "comm/world_context.h"

namespace tessera {

struct World::State {
  explicit State(std::shared_ptr<comm::WorldContext> shared);

  std::shared_ptr<comm::WorldContext> context;
  Communicator comm;
  std::shared_ptr<FakeTraffic> fake_traffic;  ///< of a fake world
};

namespace comm {

/// What follows from the options alone. Throws ConfigError for options that cannot be.
std::shared_ptr<WorldContext> make_context(const WorldOptions& options, int rank, int size);

}  // namespace comm
}  // namespace tessera
