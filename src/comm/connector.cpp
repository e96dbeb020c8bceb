#include "comm/connector.h"

#include <tessera/core/error.h>

#include <string>

#include "comm/algorithms/ring_engine.h"
#include "comm/algorithms/tree_engine.h"
#include "comm/engine/channels.h"

namespace tessera::comm {

std::shared_ptr<CollectiveEngine> Connector::message_engine(CommunicationStrategy strategy,
                                                            const ConnectRequest& request,
                                                            const Connection& connection) {
  if (!connection.transport) {
    throw ConfigError("the strategy " + std::string(to_string(strategy)) + " needs CPU messages, which the backend " +
                      connection.backend->getBackendName() + " does not carry; use the strategy allreduce");
  }
  if (strategy == CommunicationStrategy::kRing) {
    return std::make_shared<RingEngine>(connection.transport, request.rank, request.size, kRingChannel);
  }
  return std::make_shared<TreeEngine>(connection.transport, request.rank, request.size, kTreeChannel);
}

}  // namespace tessera::comm
