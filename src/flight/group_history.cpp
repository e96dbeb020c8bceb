#include "flight/group_history.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

namespace tessera::flight {
std::vector<GroupHistory> GroupHistory::of(const std::vector<RankStatus>& ranks) {
  std::map<std::string, GroupHistory> histories;
  for (const RankStatus& status : ranks) {
    if (!status.snapshot) continue;
    for (const GroupRecord& group : status.snapshot->groups) {
      GroupHistory& history = histories[group.name];
      history.name_ = group.name;
      history.members_ = group.ranks;
    }
    for (const CallRecord& call : status.snapshot->calls) {
      if (!call.is_collective) continue;
      GroupHistory& history = histories[call.group];
      history.name_ = call.group;
      history.calls_[call.sequence][status.rank] = &call;
    }
  }
  std::vector<GroupHistory> result;
  for (auto& [name, history] : histories) result.push_back(std::move(history));
  return result;
}

std::optional<GroupHistory::Divergence> GroupHistory::divergence() const {
  for (const auto& [sequence, by_rank] : calls_) {
    Divergence found{sequence, {}, {}};
    for (const auto& [rank, call] : by_rank) {
      const std::string key = agreement_key(*call);
      found.ranks_by_signature[key].push_back(rank);
      found.example.emplace(key, call);
    }
    if (found.ranks_by_signature.size() > 1) return found;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> GroupHistory::first_call_from_other_lines() const {
  for (const auto& [sequence, by_rank] : calls_) {
    std::set<std::pair<std::string, std::uint32_t>> places;
    for (const auto& [rank, call] : by_rank) places.emplace(call->file, call->line);
    if (places.size() > 1) return sequence;
  }
  return std::nullopt;
}

std::optional<GroupHistory::Gap> GroupHistory::gap() const {
  for (const auto& [sequence, by_rank] : calls_) {
    Gap found{nullptr, {}, {}};
    for (const auto& [rank, call] : by_rank) {
      // One that gave up waited too.
      if (call->state == CallState::kDone) continue;
      found.waiting.push_back(rank);
      found.call = call;
    }
    if (found.call == nullptr) continue;
    for (const int member : members_) {
      const CallRecord* last = last_call(member);
      if (last == nullptr || last->sequence < sequence) found.absent.push_back(member);
    }
    if (!found.absent.empty()) return found;
  }
  return std::nullopt;
}

const CallRecord* GroupHistory::call(std::uint64_t sequence, int rank) const {
  const auto by_rank = calls_.find(sequence);
  if (by_rank == calls_.end()) return nullptr;
  const auto found = by_rank->second.find(rank);
  return found == by_rank->second.end() ? nullptr : found->second;
}

const CallRecord* GroupHistory::last_call(int rank) const {
  for (const auto& [sequence, by_rank] : std::ranges::reverse_view(calls_)) {
    const auto found = by_rank.find(rank);
    if (found != by_rank.end()) return found->second;
  }
  return nullptr;
}

}  // namespace tessera::flight
