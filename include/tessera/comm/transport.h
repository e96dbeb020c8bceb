#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A message under way.
class Transfer {
 public:
  /// Stops it, if it is not done: its memory may be freed next.
  virtual ~Transfer() = default;
  /// Whether it is done. Never blocks. May make progress.
  virtual bool test() = 0;
  /// Blocks: until done. Throws CommError after `deadline`, or at once when the peer is known to be lost.
  virtual void wait(std::chrono::steady_clock::time_point deadline) = 0;
};

/// Point-to-point messages between the ranks of one group: all that a backend of your own has to provide. Tessera
/// builds every collective on it (docs/guides/custom_backend.md has a complete one).
///
/// Messages from one rank to another on one channel arrive in order. Progress must not depend on the order in which
/// the caller waits: a send and a receive started together both finish.
/// Thread-safety: calls come from several threads.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  /// `data` stays valid until the transfer is done.
  virtual std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) = 0;
  virtual std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) = 0;
  /// Called after an asynchronous start: from now on transfers should advance though no thread waits for them. Only
  /// transports whose messages need the sender's help have something to do here.
  virtual void progress_in_background() {}
};

/// Describes to a transport factory the group that the transport is for.
struct GroupSpec {
  std::string name;  ///< unique in the job: a good prefix for keys
  int rank = 0;      ///< of this process in the group
  int size = 1;
  std::vector<int> world_ranks;  ///< of the members, in group order
  /// The job's rendezvous: `set` publishes a key, `get` blocks until a key is published. Keys are private to the group.
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;
};

using TransportFactory = std::function<std::unique_ptr<Transport>(const GroupSpec&)>;

}  // namespace tessera
