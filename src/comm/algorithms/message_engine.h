#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "comm/algorithms/message_passing.h"
#include "comm/engine/channels.h"
#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// What an engine over messages has in common whatever its algorithm: operations in which every byte has one sender and
/// one receiver go directly.
class MessageEngine : public CollectiveEngine {
 public:
  MessageEngine(std::shared_ptr<Transport> transport, int rank, int size, int channel = kBackendChannel)
      : transport_(std::move(transport)), messages_(*transport_, rank, size, channel) {}

  void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) override;
  void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) override;
  void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                  Deadline deadline) override;
  /// By dissemination: log2(n) rounds.
  void barrier(Deadline deadline) override;

  const MessagePassing& messages() const { return messages_; }

 protected:
  int rank() const { return messages_.rank(); }
  int size() const { return messages_.size(); }
  std::size_t index() const { return static_cast<std::size_t>(messages_.rank()); }

  std::shared_ptr<Transport> transport_;
  MessagePassing messages_;

 private:
  using Start = std::function<std::unique_ptr<Transfer>(Buffer place, int peer)>;
  /// Starts a transfer of every other rank's part of `whole`, then waits for all.
  void with_each_other(Buffer whole, const Counts& counts, Deadline deadline, const Start& start);
};

}  // namespace tessera::comm
