#include "comm/fake/fake_engine.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "comm/engine/engine_backend.h"

namespace tessera::comm {
namespace {

std::int64_t num_nonzero(const Counts& counts) {
  return std::count_if(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; });
}

std::int64_t total(const Counts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

/// Requires: as much room as bytes, or less.
void copy_bytes(const Buffer& from, const Buffer& to) {
  const auto num_bytes = static_cast<std::size_t>(std::min(from.num_bytes(), to.num_bytes()));
  if (num_bytes > 0 && from.data != to.data) std::memmove(to.data, from.data, num_bytes);
}

}  // namespace

// What a rank has itself arrives; the rest of a result stays as it is.

void FakeEngine::sent(std::int64_t messages, std::int64_t num_bytes) {
  if (num_bytes == 0) return;
  traffic_->num_messages += static_cast<std::uint64_t>(messages);
  traffic_->num_bytes += static_cast<std::uint64_t>(num_bytes);
}

std::int64_t FakeEngine::num_children(int root) const {
  const int place = ((rank_ - root) % size_ + size_) % size_;
  int stride = place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_))) : place & -place;
  std::int64_t children = 0;
  for (stride /= 2; stride >= 1; stride /= 2) children += place + stride < size_ ? 1 : 0;
  return children;
}

std::int64_t FakeEngine::subtree_bytes(const Buffer& whole, const Counts& counts) const {
  if (rank_ == 0) return 0;
  const int end = std::min(rank_ + (rank_ & -rank_), size_);
  std::int64_t elements = 0;
  for (int r = rank_; r < end; ++r) elements += counts[static_cast<std::size_t>(r)];
  return elements * whole.element_bytes();
}

void FakeEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  if (shape_ == Shape::kTree) {
    called();
    sent(rank_ == 0 ? 0 : 1, rank_ == 0 ? 0 : data.num_bytes());
    sent(num_children(0), num_children(0) * data.num_bytes());
    return;
  }
  const Counts counts = even_counts(data.count, size_);
  const Buffer piece =
      data.slice(offsets_of(counts)[static_cast<std::size_t>(rank_)], counts[static_cast<std::size_t>(rank_)]);
  reduce_scatter(piece, data, counts, op, deadline);
  all_gather(data, piece, counts, deadline);
  --traffic_->num_calls;
}

void FakeEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline /*deadline*/) {
  called();
  copy_bytes(piece, whole.slice(offsets_of(counts)[static_cast<std::size_t>(rank_)], piece.count));
  if (shape_ == Shape::kTree) {
    const std::int64_t up = subtree_bytes(whole, counts);
    sent(up > 0 ? 1 : 0, up);
    sent(num_children(0), num_children(0) * whole.num_bytes());
    return;
  }
  const std::int64_t kept = counts[static_cast<std::size_t>((rank_ + 1) % size_)];
  if (size_ > 1) {
    sent(num_nonzero(counts) - (kept > 0 ? 1 : 0), (total(counts) - kept) * whole.element_bytes());
  }
}

void FakeEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp /*op*/,
                                Deadline /*deadline*/) {
  called();
  copy_bytes(whole.slice(offsets_of(counts)[static_cast<std::size_t>(rank_)], piece.count), piece);
  if (shape_ == Shape::kTree) {
    sent(rank_ == 0 ? 0 : 1, rank_ == 0 ? 0 : whole.num_bytes());
    if (rank_ == 0) {
      sent(num_nonzero(counts) - (counts[0] > 0 ? 1 : 0), (total(counts) - counts[0]) * whole.element_bytes());
    }
    return;
  }
  const std::int64_t kept = counts[static_cast<std::size_t>(rank_)];
  if (size_ > 1) {
    sent(num_nonzero(counts) - (kept > 0 ? 1 : 0), (total(counts) - kept) * whole.element_bytes());
  }
}

void FakeEngine::broadcast(Buffer data, int root, Deadline /*deadline*/) {
  called();
  if (shape_ == Shape::kTree) {
    sent(num_children(root), num_children(root) * data.num_bytes());
  } else if ((rank_ + 1) % size_ != root) {
    sent(1, data.num_bytes());
  }
}

void FakeEngine::reduce(Buffer data, int root, ReduceOp /*op*/, Deadline /*deadline*/) {
  called();
  if (shape_ == Shape::kTree) {
    if (rank_ != 0 || root != 0) sent(1, data.num_bytes());
  } else if (rank_ != root) {
    sent(1, data.num_bytes());
  }
}

void FakeEngine::gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline /*deadline*/) {
  called();
  if (rank_ == root) copy_bytes(piece, whole.slice(offsets_of(counts)[static_cast<std::size_t>(rank_)], piece.count));
  if (rank_ != root) sent(1, piece.num_bytes());
}

void FakeEngine::scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline /*deadline*/) {
  called();
  if (rank_ != root) return;
  copy_bytes(whole.slice(offsets_of(counts)[static_cast<std::size_t>(rank_)], piece.count), piece);
  const std::int64_t kept = counts[static_cast<std::size_t>(rank_)];
  sent(num_nonzero(counts) - (kept > 0 ? 1 : 0), (total(counts) - kept) * piece.element_bytes());
}

void FakeEngine::all_to_all(Buffer received, const Counts& recv_counts, Buffer data, const Counts& send_counts,
                            Deadline /*deadline*/) {
  called();
  const auto self = static_cast<std::size_t>(rank_);
  copy_bytes(data.slice(offsets_of(send_counts)[self], send_counts[self]),
             received.slice(offsets_of(recv_counts)[self], recv_counts[self]));
  const std::int64_t kept = send_counts[static_cast<std::size_t>(rank_)];
  sent(num_nonzero(send_counts) - (kept > 0 ? 1 : 0), (total(send_counts) - kept) * data.element_bytes());
}

void FakeEngine::barrier(Deadline /*deadline*/) {
  called();
  const auto rounds = static_cast<std::int64_t>(std::bit_width(static_cast<unsigned>(size_ - 1)));
  sent(rounds, rounds);
}

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
