#pragma once

#include <tessera/comm/communicator.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/engine/collective_engine.h"

namespace tessera {

class Group;

namespace comm {

/// Inside each node first, then one stream a node between the first ranks of the nodes, then inside again: each byte
/// crosses the network as often as with one rank a node.
class HierarchicalEngine : public CollectiveEngine {
 public:
  explicit HierarchicalEngine(Group& group);

  std::string name() const override { return "hierarchical"; }
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
  struct Place {
    int node = 0;   ///< index among the nodes of this group
    int local = 0;  ///< index among the members on that node
  };
  bool leads() const { return local_.rank() == 0; }
  Communicator local(Deadline deadline) const;
  Communicator leaders(Deadline deadline) const;
  Counts node_counts(const Counts& counts) const;
  Counts local_counts(const Counts& counts) const;

  /// Divides a sum by the number of ranks if an average was asked for.
  void average(Buffer data, ReduceOp op) const;

  int size_;
  bool moves_data_;
  int node_ = 0;                           ///< this rank's, among the nodes of this group
  std::vector<Place> places_;              ///< of every member
  std::vector<std::vector<int>> members_;  ///< group ranks on each node
  Communicator local_;
  std::optional<Communicator> leaders_;  ///< on the first member of each node only
};

}  // namespace comm
}  // namespace tessera
