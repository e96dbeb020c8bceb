#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <tessera/flight/recorder.h>

namespace tessera::flight {

inline constexpr std::uint64_t kBoxMagic = 0x3330584f42525354;  // "TSRBOX03"
inline constexpr std::size_t kMaxGroups = 256;
inline constexpr std::size_t kMaxDims = 6;

struct GroupEntry {
  std::array<char, 112> name;
  std::array<char, 136> ranks;  // as ranks_text writes them, cut off where the room ends
  std::int32_t size;
};

struct CallEntry {
  std::atomic<std::uint64_t> version;  // odd while it is written; 0: never used
  std::uint64_t ticket;
  std::uint64_t sequence;
  std::int64_t started_ns;
  std::int64_t ended_ns;
  std::int64_t awaited_ns;
  std::array<std::int64_t, kMaxDims> shape;
  std::uint32_t num_dims;
  std::uint32_t group;
  std::uint32_t line;
  std::int32_t peer;
  std::uint8_t state;
  std::uint8_t is_collective;
  std::array<char, 26> operation;
  std::array<char, 16> dtype;
  std::array<char, 96> file;  // its end
};

struct TaskEntry {
  std::atomic<std::uint64_t> version;  // odd while it is written
  std::int64_t started_ns;             // 0: there is no task
  std::array<char, 160> what;
};

/// The layout of a black box. Two builds of Tessera with different layouts cannot share one: its size is checked.
struct Box {
  std::atomic<std::uint64_t> magic;  // written last
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t process;
  std::array<char, 68> host;
  std::array<char, 512> verdict;
  std::atomic<std::uint32_t> num_groups;
  std::atomic<std::uint64_t> next_ticket;
  TaskEntry task;
  std::array<GroupEntry, kMaxGroups> groups;
  std::array<CallEntry, Recorder::kCapacity> calls;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What the memory holds. Trusts no field, because the process that wrote it may have died while writing.
Snapshot read_box(const Box& box);
/// The entry as a record; nothing when it is unused, is being written or was overwritten meanwhile.
std::optional<CallRecord> read_entry(const Box& box, const CallEntry& entry);

}  // namespace tessera::flight
