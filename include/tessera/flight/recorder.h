#pragma once

#include <tessera/flight/call_listener.h>
#include <tessera/flight/snapshot.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

namespace tessera::flight {

struct Box;

/// A call at its start.
struct CallStart {
  std::uint32_t group = 0;  ///< as `add_group` returned it
  std::uint64_t sequence = 0;
  const char* operation = "";
  bool is_collective = true;
  const char* dtype = "";
  std::span<const std::int64_t> shape;
  std::source_location where;
};

/// The latest calls of a rank, in a ring of fixed size. It costs a fraction of a microsecond a call.
///
/// Note [The black box]
/// The ring lies in memory that outlives the process when the launcher provides it: what a killed rank was doing can
/// still be read. Entries therefore hold text, not pointers, and each has a version that is odd while it is written.
///
/// Thread-safety: all functions.
class Recorder {
 public:
  static constexpr std::size_t kCapacity = 512;

  /// Records into memory that ends with this process.
  Recorder();
  /// Records into the black box at `path` (see BlackBox). Throws StorageError when it cannot be opened.
  explicit Recorder(const std::string& path);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Where other processes of this user read what is recorded, even while this one is stopped.
  const std::string& path() const;

  void introduce(int rank, int world_size);

  /// Remembers a group under the number that is returned.
  std::uint32_t add_group(const std::string& name, const std::vector<int>& ranks);

  /// Why this rank cannot go on, when that is not of its own making: whoever sees it end knows where to look.
  void conclude(const std::string& why);

  /// Returns a ticket for `end`.
  std::uint64_t begin(const CallStart& call);
  /// `done_ns`: when it was done, where that is known better than by this call. `blocked_ns`: see CallListener.
  void end(std::uint64_t ticket, bool failed, std::int64_t done_ns = 0, std::int64_t blocked_ns = 0);

  /// Tells `listener` of every call that ends, as long as it lives. None of them is lost, unless more calls than
  /// `kCapacity` are under way at once. False, and nothing changes, when another listener lives.
  bool listen(const std::shared_ptr<CallListener>& listener);
  /// False soon after the listener has gone: to skip what only listeners need.
  bool is_heard() const;

  /// Oldest first.
  std::vector<CallRecord> recent() const { return snapshot().calls; }
  Snapshot snapshot() const;
  /// The call that has been under way for longest. Cheap: for watching.
  std::optional<CallRecord> oldest_under_way() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The memory of a Recorder in another process of this host, kept by whoever wants to read it after that process died.
class BlackBox {
 public:
  /// Throws StorageError when the system gives no memory.
  BlackBox();
  ~BlackBox();
  BlackBox(BlackBox&& other) noexcept;
  BlackBox& operator=(BlackBox&&) = delete;

  /// Where a process of the same user opens it, while this one lives.
  std::string path() const;
  /// What is in it; nothing before a recorder has introduced itself. Entries that are being written are left out.
  std::optional<Snapshot> read() const;

 private:
  friend class Recorder;

  int descriptor_ = -1;
  Box* box_ = nullptr;
};

/// What a recorder of another process wrote at that path; nothing when it cannot be read (any more).
std::optional<Snapshot> read_black_box(const std::string& path);

}  // namespace tessera::flight
