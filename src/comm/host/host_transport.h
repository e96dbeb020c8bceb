#pragma once

#include <tessera/comm/transport.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/host/host_group.h"

namespace tessera::comm {

/// Messages through shared memory. The receiver copies memory that it can reach directly; other memory goes in pieces
/// through a bounce buffer of the sender. A thread that waits for a transfer advances all of this rank's transfers; a
/// background thread advances those for which no thread waits.
class HostTransport : public Transport {
 public:
  /// Memory that peers reach, for bounce buffers.
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t num_bytes)>;

  HostTransport(std::shared_ptr<HostGroup> group, Allocate allocate);
  ~HostTransport() override;

  std::string name() const override { return group_->backend; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override;
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override;
  void progress_in_background() override;

 private:
  struct Message;
  class HostTransfer;
  /// Messages to or from one peer on one channel. They move in order, so only the first is advanced.
  struct Stream {
    std::deque<std::shared_ptr<Message>> waiting;
    std::shared_ptr<std::byte> bounce;
  };
  using Key = std::pair<int, int>;  // channel, peer

  std::unique_ptr<Transfer> start(std::map<Key, Stream>& streams, std::shared_ptr<Message> message, Key key);
  void progress();
  bool push(Stream& stream, Message& message, Key key);
  bool pull(Message& message, Key key);
  void cancel(const std::shared_ptr<Message>& message);
  void ring(int rank) const;
  bool idle() const;
  void serve();

  std::shared_ptr<HostGroup> group_;
  Allocate allocate_;
  std::mutex mutex_;
  std::map<Key, Stream> sends_;
  std::map<Key, Stream> receives_;
  std::condition_variable work_arrived_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
