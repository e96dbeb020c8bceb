#include "comm/fake/fake_connector.h"

#include "comm/engine/engine_backend.h"
#include "comm/fake/fake_engine.h"

namespace tessera::comm {
namespace {

class DoneTransfer : public Transfer {
 public:
  bool test() override { return true; }
  void wait(std::chrono::steady_clock::time_point /*deadline*/) override {}
};

class FakeTransport : public Transport {
 public:
  explicit FakeTransport(std::shared_ptr<FakeTraffic> traffic) : traffic_(std::move(traffic)) {}

  std::string name() const override { return "fake"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int /*peer*/, int /*channel*/) override {
    ++traffic_->num_calls;
    ++traffic_->num_messages;
    traffic_->num_bytes += data.size();
    return std::make_unique<DoneTransfer>();
  }
  std::unique_ptr<Transfer> recv(std::span<std::byte> /*data*/, int /*peer*/, int /*channel*/) override {
    ++traffic_->num_calls;
    return std::make_unique<DoneTransfer>();
  }

 private:
  std::shared_ptr<FakeTraffic> traffic_;
};

}  // namespace

Connection FakeConnector::connect(const ConnectRequest& request) {
  ++traffic_->num_groups;
  Connection connection;
  connection.transport = std::make_shared<FakeTransport>(traffic_);
  connection.backend = c10::make_intrusive<EngineBackend>(
      request.rank, request.size,
      std::make_shared<FakeEngine>(traffic_, FakeEngine::Shape::kRing, request.rank, request.size),
      connection.transport, request.timeout);
  connection.is_zero_copy = [](const void*, std::size_t) { return true; };
  return connection;
}

std::shared_ptr<CollectiveEngine> FakeConnector::message_engine(CommunicationStrategy strategy,
                                                                const ConnectRequest& request,
                                                                const Connection& /*connection*/) {
  const auto shape = strategy == CommunicationStrategy::kTree ? FakeEngine::Shape::kTree : FakeEngine::Shape::kRing;
  return std::make_shared<FakeEngine>(traffic_, shape, request.rank, request.size);
}

}  // namespace tessera::comm
