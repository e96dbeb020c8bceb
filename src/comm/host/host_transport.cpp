#include "comm/host/host_transport.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace tessera::comm {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{256} << 10;

}  // namespace

struct HostTransport::Message {
  std::byte* data = nullptr;
  std::size_t num_bytes = 0;
  bool outgoing = false;
  int peer = 0;
  std::size_t moved = 0;   // bytes handed to, or taken from, the queue
  bool started = false;    // even an empty message is one piece
  std::uint32_t last = 0;  // outgoing: the message is complete when the receiver has taken this piece
  std::string fault;       // incoming: why it was discarded; written before `done`
  std::atomic<bool> done = false;

  bool complete() const { return started && moved == num_bytes; }
};

class HostTransport::HostTransfer : public Transfer {
 public:
  HostTransfer(HostTransport& transport, std::shared_ptr<Message> message)
      : transport_(transport), message_(std::move(message)) {}
  ~HostTransfer() override {
    if (!message_->done) transport_.cancel(message_);
  }

  bool test() override {
    if (!message_->done) transport_.progress();
    return message_->done;
  }

  void wait(std::chrono::steady_clock::time_point at) override {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at - std::chrono::steady_clock::now());
    const HostGroup& group = *transport_.group_;
    group.waiter.wait(
        group.control.doorbell(group.rank), [this] { return test(); }, Deadline::after(left),
        [&] {
          return std::string(message_->outgoing ? "send to rank " : "recv from rank ") +
                 std::to_string(message_->peer) + " (" + std::to_string(message_->moved) + " of " +
                 std::to_string(message_->num_bytes) + " bytes moved)";
        });
    if (!message_->fault.empty()) throw ConfigError(message_->fault);
  }

 private:
  HostTransport& transport_;
  std::shared_ptr<Message> message_;
};

HostTransport::HostTransport(std::shared_ptr<HostGroup> group, Allocate allocate)
    : group_(std::move(group)), allocate_(std::move(allocate)) {}

HostTransport::~HostTransport() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_all();
  ring(group_->rank);
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<Transfer> HostTransport::send(std::span<const std::byte> data, int peer, int channel) {
  auto message = std::make_shared<Message>();
  message->data = const_cast<std::byte*>(data.data());  // NOLINT: outgoing messages are only read
  message->num_bytes = data.size();
  message->outgoing = true;
  message->peer = peer;
  return start(sends_, std::move(message), {channel, peer});
}

std::unique_ptr<Transfer> HostTransport::recv(std::span<std::byte> data, int peer, int channel) {
  auto message = std::make_shared<Message>();
  message->data = data.data();
  message->num_bytes = data.size();
  message->peer = peer;
  return start(receives_, std::move(message), {channel, peer});
}

std::unique_ptr<Transfer> HostTransport::start(std::map<Key, Stream>& streams, std::shared_ptr<Message> message,
                                               Key key) {
  {
    const std::lock_guard lock(mutex_);
    streams[key].waiting.push_back(message);
  }
  progress();
  return std::make_unique<HostTransfer>(*this, std::move(message));
}

void HostTransport::ring(int rank) const {
  FutexWord& bell = group_->control.doorbell(rank);
  bell.fetch_add(1, std::memory_order_acq_rel);
  futex_wake_all(bell);
}

void HostTransport::progress() {
  const std::lock_guard lock(mutex_);
  for (auto& [key, stream] : sends_) {
    while (!stream.waiting.empty() && push(stream, *stream.waiting.front(), key)) stream.waiting.pop_front();
  }
  for (auto& [key, stream] : receives_) {
    while (!stream.waiting.empty() && pull(*stream.waiting.front(), key)) stream.waiting.pop_front();
  }
}

bool HostTransport::push(Stream& stream, Message& message, Key key) {
  PairQueue& queue = group_->control.pair(key.first, group_->rank, key.second);
  std::uint32_t posted = queue.posted.load(std::memory_order_relaxed);
  const auto direct = group_->space.publish(message.data, message.num_bytes);
  bool moved = false;
  while (!message.complete() && posted - queue.taken.load(std::memory_order_acquire) < PairQueue::kDepth) {
    Piece& piece = queue.pieces[posted % PairQueue::kDepth];
    piece.message_bytes = message.num_bytes;
    piece.num_bytes = direct ? message.num_bytes : std::min(kBounceBytes, message.num_bytes - message.moved);
    if (direct) {
      piece.address = *direct;
    } else {
      if (!stream.bounce) stream.bounce = allocate_(kBounceBytes * PairQueue::kDepth);
      std::byte* bounce = stream.bounce.get() + (posted % PairQueue::kDepth) * kBounceBytes;
      if (piece.num_bytes > 0) std::memcpy(bounce, message.data + message.moved, piece.num_bytes);
      piece.address = group_->space.publish(bounce, piece.num_bytes).value();
    }
    message.moved += piece.num_bytes;
    message.started = true;
    message.last = ++posted;
    queue.posted.store(posted, std::memory_order_release);
    moved = true;
  }
  if (moved) ring(key.second);
  if (!message.complete()) return false;
  // The receiver may read a bounce buffer at any later time. The caller's own memory must have been read by now.
  const std::uint32_t taken = queue.taken.load(std::memory_order_acquire);
  if (direct && static_cast<std::int32_t>(taken - message.last) < 0) return false;
  message.done = true;
  return true;
}

bool HostTransport::pull(Message& message, Key key) {
  PairQueue& queue = group_->control.pair(key.first, key.second, group_->rank);
  bool moved = false;
  std::uint32_t taken = queue.taken.load(std::memory_order_relaxed);
  while (!message.complete() && queue.posted.load(std::memory_order_acquire) != taken) {
    const Piece piece = queue.pieces[taken % PairQueue::kDepth];
    if (!message.started && piece.message_bytes != message.num_bytes) {
      // Received all the same, and discarded. Otherwise the sender would wait for ever, and the next receive would get
      // this message.
      message.fault = "rank " + std::to_string(group_->rank) + " expects " + std::to_string(message.num_bytes) +
                      " bytes from rank " + std::to_string(message.peer) + ", which sent " +
                      std::to_string(piece.message_bytes) + "; receive into the shape that is sent";
      message.num_bytes = piece.message_bytes;
    }
    if (message.fault.empty() && piece.num_bytes > 0) {
      std::memcpy(message.data + message.moved, group_->space.resolve(piece.address), piece.num_bytes);
    }
    message.moved += piece.num_bytes;
    message.started = true;
    queue.taken.store(++taken, std::memory_order_release);
    moved = true;
  }
  if (moved) ring(key.second);
  if (!message.complete()) return false;
  message.done = true;
  return true;
}

void HostTransport::cancel(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  for (auto* streams : {&sends_, &receives_}) {
    for (auto& [key, stream] : *streams) std::erase(stream.waiting, message);
  }
}

bool HostTransport::idle() const {
  const auto empty = [](const auto& entry) { return entry.second.waiting.empty(); };
  return std::all_of(sends_.begin(), sends_.end(), empty) && std::all_of(receives_.begin(), receives_.end(), empty);
}

void HostTransport::progress_in_background() {
  const std::lock_guard lock(mutex_);
  if (idle()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  work_arrived_.notify_all();
}

void HostTransport::serve() {
  FutexWord& bell = group_->control.doorbell(group_->rank);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      work_arrived_.wait(lock, [this] { return stopping_ || !idle(); });
      if (stopping_) return;
    }
    const std::uint32_t seen = bell.load(std::memory_order_acquire);
    progress();
    futex_wait(bell, seen, std::chrono::milliseconds(100));
  }
}

}  // namespace tessera::comm
