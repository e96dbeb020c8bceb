#pragma once

#include <tessera/comm/world.h>

#include <memory>
#include <string>

#include "comm/connector.h"
#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// Counts what this rank would send by the ring (or the tree). Only what a rank has itself reaches a result.
class FakeEngine : public CollectiveEngine {
 public:
  enum class Shape { kRing, kTree };
  FakeEngine(std::shared_ptr<FakeTraffic> traffic, Shape shape, int rank, int size)
      : traffic_(std::move(traffic)), shape_(shape), rank_(rank), size_(size) {}

  std::string name() const override { return "fake"; }
  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;
  void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) override;
  void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) override;
  void all_to_all(Buffer received, const Counts& recv_counts, Buffer data, const Counts& send_counts,
                  Deadline deadline) override;
  void barrier(Deadline deadline) override;

 private:
  void sent(std::int64_t messages, std::int64_t num_bytes);
  void called() { ++traffic_->num_calls; }
  std::int64_t num_children(int root) const;
  std::int64_t subtree_bytes(const Buffer& whole, const Counts& counts) const;

  std::shared_ptr<FakeTraffic> traffic_;
  Shape shape_;
  int rank_;
  int size_;
};

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
