#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm/engine/collective_engine.h"
#include "comm/host/host_exchange.h"

namespace tessera::comm {

/// Collectives among ranks that share memory: threads of one process, or processes with a common mapping. A tensor in
/// memory that peers reach is read, and for all_reduce written, where it is; any other goes through staging areas that
/// are small enough to stay in cache. Every element is reduced in rank order by one rank, so all get the same bits.
class HostEngine : public CollectiveEngine {
 public:
  explicit HostEngine(std::shared_ptr<HostGroup> group) : exchange_(std::move(group)) {}

  std::string name() const override { return exchange_.group().backend; }

  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;
  void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) override;
  void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) override;
  void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                  Deadline deadline) override;
  void barrier(Deadline deadline) override;

 private:
  int rank() const { return exchange_.group().rank; }
  int size() const { return exchange_.group().size; }
  void reduce_window(const HostExchange::Window& window, std::size_t block, Buffer into, ReduceOp op) const;

  HostExchange exchange_;
};

}  // namespace tessera::comm
