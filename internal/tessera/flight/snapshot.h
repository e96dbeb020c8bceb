#pragma once

#include <tessera/flight/call_record.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::flight {

/// A group that a rank is a member of.
struct GroupRecord {
  std::string name;
  int size = 0;
  std::vector<int> ranks;  ///< of the world, ascending; fewer than `size` when there was no room for all

  bool operator==(const GroupRecord&) const = default;
};

/// What a rank does beside its calls, in words: "Forward of micro-batch 3, stage 0".
struct TaskRecord {
  std::string what;
  std::int64_t started_ns = 0;

  bool operator==(const TaskRecord&) const = default;
};

/// What one rank recorded, at one moment.
struct Snapshot {
  int rank = -1;
  int world_size = 0;
  int process = 0;
  std::string host;
  std::string verdict;  ///< why the rank cannot go on; empty while it can
  std::vector<GroupRecord> groups;
  std::vector<CallRecord> calls;  ///< the latest, oldest first
  std::optional<TaskRecord> task = std::nullopt;

  bool operator==(const Snapshot&) const = default;
};

/// Whether its caller waits in it.
bool is_waited_in(const CallRecord& call);
/// Since when.
std::int64_t waits_since(const CallRecord& call);
/// The call that a rank waits in; if it waits in none, the latest that has ended. Null: there is none. Messages under
/// way while the rank does other work are neither.
const CallRecord* current_call(const Snapshot& snapshot);

/// Only the `num_calls` latest calls: a snapshot that travels should be small.
std::string to_json(const Snapshot& snapshot, std::size_t num_calls = 64);
/// Throws ConfigError for what is not a snapshot.
Snapshot snapshot_from_json(std::string_view text);

}  // namespace tessera::flight
