#pragma once

#include <tessera/comm/world.h>

#include <memory>

#include "comm/connector.h"

namespace tessera::comm {

/// Groups in which nothing moves. Every call is counted in `traffic`.
class FakeConnector : public Connector {
 public:
  explicit FakeConnector(std::shared_ptr<FakeTraffic> traffic) : traffic_(std::move(traffic)) {}

  Connection connect(const ConnectRequest& request) override;
  bool moves_data() const override { return false; }
  std::shared_ptr<CollectiveEngine> message_engine(CommunicationStrategy strategy, const ConnectRequest& request,
                                                   const Connection& connection) override;

 private:
  std::shared_ptr<FakeTraffic> traffic_;
};

}  // namespace tessera::comm
