#pragma once

#include <tessera/flight/call_record.h>
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
  int peer = -1;  ///< see CallRecord
  const char* dtype = "";
  std::span<const std::int64_t> shape;
  std::source_location where;
};

/// The latest calls of a rank, in a ring of fixed size. It costs a fraction of a microsecond a call.
///
/// Note [The black box]
/// When the launcher provides the memory of the ring, it outlives the process, so that the launcher can still read what
/// a killed rank was doing. Entries therefore hold text, not pointers, and each has a version that is odd while it is
/// written.
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

  /// The path at which other processes of this user can read the record, even while this process is stopped.
  const std::string& path() const;

  void introduce(int rank, int world_size);

  /// Remembers a group under the number that is returned.
  std::uint32_t add_group(const std::string& name, const std::vector<int>& ranks);

  /// Records why this rank cannot go on when the cause lies elsewhere. The launcher, which sees the rank end, then
  /// knows where to look.
  void conclude(const std::string& why);

  /// Returns a ticket for `end`. The caller waits: a message may have to connect first.
  std::uint64_t begin(const CallStart& call);
  /// Whether the caller of a message waits for it from now on.
  void set_awaited(std::uint64_t ticket, bool is_awaited);
  /// `done_ns`: when the operation was done, if the caller knows; 0: now. `blocked_ns`: see CallListener.
  void end(std::uint64_t ticket, bool failed, std::int64_t done_ns = 0, std::int64_t blocked_ns = 0);

  /// What this rank does from now on. Returns what it did before; that goes on afterwards (see end_task()).
  std::optional<TaskRecord> begin_task(const std::string& what);
  void end_task(const std::optional<TaskRecord>& outer);

  /// Notifies `listener` of every call that ends, until the listener is destroyed. It misses calls only if more than
  /// `kCapacity` are under way at once. Returns false, and changes nothing, while another listener lives.
  bool listen(const std::shared_ptr<CallListener>& listener);
  /// Whether there is a listener; callers skip what only listeners need. Turns false at the first call that ends after
  /// the listener was destroyed.
  bool is_heard() const;

  /// Oldest first.
  std::vector<CallRecord> recent() const { return snapshot().calls; }
  Snapshot snapshot() const;
  std::optional<TaskRecord> task() const;
  /// The call that this rank waits in for longest. Cheap: for watching.
  std::optional<CallRecord> oldest_under_way() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The memory of a Recorder in another process of this host. The process that keeps it can read it after the other one
/// has died.
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
