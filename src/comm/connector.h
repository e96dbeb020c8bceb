#pragma once

#include <tessera/comm/strategy.h>

#include <memory>

#include "comm/connection.h"
#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// How the groups of one world are connected.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Connection connect(const ConnectRequest& request) = 0;
  /// False where calls are only counted and tensors must keep their values.
  virtual bool moves_data() const { return true; }
  /// The ring or the tree on the messages of a connected group.
  virtual std::shared_ptr<CollectiveEngine> message_engine(CommunicationStrategy strategy,
                                                           const ConnectRequest& request, const Connection& connection);
};

}  // namespace tessera::comm
