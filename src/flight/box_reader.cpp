#include <tessera/flight/rank_set.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "flight/box.h"

namespace tessera::flight {
namespace {

template <std::size_t size>
std::string text_of(const std::array<char, size>& field) {
  return {field.data(), strnlen(field.data(), size)};
}

}  // namespace

std::optional<CallRecord> read_entry(const Box& box, const CallEntry& entry) {
  const std::uint64_t before = entry.version.load(std::memory_order_acquire);
  if (before == 0 || before % 2 == 1) return std::nullopt;
  CallRecord record;
  record.sequence = entry.sequence;
  record.operation = text_of(entry.operation);
  record.is_collective = entry.is_collective != 0;
  record.dtype = text_of(entry.dtype);
  record.file = text_of(entry.file);
  record.line = entry.line;
  record.state = static_cast<CallState>(std::min<std::uint8_t>(entry.state, 2));
  record.started_ns = entry.started_ns;
  record.ended_ns = entry.ended_ns;
  const std::size_t num_dims = std::min<std::size_t>(entry.num_dims, kMaxDims);
  record.shape.assign(entry.shape.begin(), entry.shape.begin() + static_cast<std::ptrdiff_t>(num_dims));
  const std::uint32_t group = entry.group;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.version.load(std::memory_order_relaxed) != before) return std::nullopt;
  record.group = group < kMaxGroups ? text_of(box.groups[group].name) : "?";
  return record;
}

Snapshot read_box(const Box& box) {
  Snapshot snapshot;
  snapshot.rank = box.rank;
  snapshot.world_size = box.world_size;
  snapshot.process = box.process;
  snapshot.host = text_of(box.host);
  snapshot.verdict = text_of(box.verdict);
  const std::size_t num_groups = std::min<std::size_t>(box.num_groups.load(std::memory_order_acquire), kMaxGroups);
  for (std::size_t i = 0; i < num_groups; ++i) {
    const GroupEntry& group = box.groups[i];
    snapshot.groups.push_back({text_of(group.name), group.size, parse_ranks(text_of(group.ranks))});
  }
  std::map<std::uint64_t, CallRecord> by_ticket;
  for (const CallEntry& entry : box.calls) {
    if (auto record = read_entry(box, entry)) by_ticket.emplace(entry.ticket, std::move(*record));
  }
  for (auto& [ticket, record] : by_ticket) snapshot.calls.push_back(std::move(record));
  return snapshot;
}

}  // namespace tessera::flight
