#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// How much an algorithm moves or reduces at once: large enough that the latency of a message does not matter, small
/// enough to stay in cache.
inline constexpr std::int64_t kSegmentBytes = 1 << 20;

/// A group as an algorithm sees it: neighbours, messages, and a count of what was sent.
class MessagePassing {
 public:
  MessagePassing(Transport& transport, int rank, int size, int channel)
      : transport_(transport), rank_(rank), size_(size), channel_(channel) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The rank `steps` further round the ring; negative goes back.
  int neighbour(int steps) const { return ((rank_ + steps) % size_ + size_) % size_; }

  void send(Buffer data, int to, Deadline deadline);
  void recv(Buffer data, int from, Deadline deadline);
  /// Both at once; either may be empty, and an empty one is not sent.
  void exchange(Buffer out, int to, Buffer in, int from, Deadline deadline);

  /// Started, to be waited for by the caller.
  std::unique_ptr<Transfer> start_send(Buffer data, int to);
  std::unique_ptr<Transfer> start_recv(Buffer data, int from);

  std::uint64_t num_messages() const { return num_messages_; }
  std::uint64_t num_bytes() const { return num_bytes_; }

 private:
  Transport& transport_;
  int rank_;
  int size_;
  int channel_;
  std::uint64_t num_messages_ = 0;
  std::uint64_t num_bytes_ = 0;
};

/// Scratch memory for `count` elements of the type of `like`.
class Scratch {
 public:
  Scratch(const Buffer& like, std::int64_t count)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(count * like.element_bytes()))),
        buffer_{memory_.get(), count, like.dtype} {}
  Buffer buffer() const { return buffer_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  Buffer buffer_;
};

/// `target = target op other`. An average is only summed here; `finish_average` divides the sum.
void accumulate(Buffer target, Buffer other, ReduceOp op);
/// Copies `from` to `to` unless they are the same memory.
void copy(Buffer to, Buffer from);
/// Turns a sum into an average if that was asked for.
void finish_average(Buffer data, ReduceOp op, int size);

/// The operations that do not depend on the algorithm: where every byte has one sender and one receiver, it is sent
/// directly.
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
