#include <tessera/flight/hang_report.h>
#include <tessera/flight/rank_set.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::flight {

/// The collectives of one group as its members recorded them.
class GroupHistory {
 public:
  /// One for every group that any rank recorded.
  static std::vector<GroupHistory> of(const std::vector<RankStatus>& ranks);

  const std::string& name() const { return name_; }

  /// The first call on which the members, as far as they recorded it, do not agree.
  struct Divergence {
    std::uint64_t sequence;
    std::map<std::string, std::vector<int>> ranks_by_signature;
    std::map<std::string, const CallRecord*> example;
  };
  std::optional<Divergence> divergence() const;

  /// The first call that members made from different lines, though it is the same operation.
  std::optional<std::uint64_t> first_call_from_other_lines() const;

  /// The collective in which some members wait and to which others have not come.
  struct Gap {
    const CallRecord* call;
    std::vector<int> waiting;
    std::vector<int> absent;  ///< members whose last call is earlier, or that recorded none
  };
  std::optional<Gap> gap() const;

  const CallRecord* call(std::uint64_t sequence, int rank) const;
  /// The latest collective of a member; nothing when it made none.
  const CallRecord* last_call(int rank) const;

 private:
  std::string name_;
  std::vector<int> members_;
  std::map<std::uint64_t, std::map<int, const CallRecord*>> calls_;  // by sequence and rank
};

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
      // A member whose call failed had waited too.
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

namespace {

std::string place(const CallRecord& call) { return call.file + ":" + std::to_string(call.line); }

std::string short_text(const CallRecord& call) {
  return call.operation + " #" + std::to_string(call.sequence) + " of group " + call.group;
}

std::string rank_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks);
}

/// `plural` follows "ranks 1,2", `singular` "rank 1".
std::string with_verb(const std::vector<int>& ranks, const char* singular, const char* plural) {
  return rank_text(ranks) + " " + (ranks.size() == 1 ? singular : plural);
}

/// Null: nothing is known, or it made none.
const CallRecord* call_of(const RankStatus& status) {
  return status.snapshot ? current_call(*status.snapshot) : nullptr;
}

bool failed_last(const RankStatus& status) {
  const CallRecord* const call = call_of(status);
  return call != nullptr && call->state == CallState::kFailed;
}

/// "recv #3 of group g, from rank 0, at train.cpp:4 (started)", behind the task that it is a part of.
std::string call_in_task(const RankStatus& status, const CallRecord& call) {
  const auto& task = status.snapshot->task;
  return task ? task->what + ": " + to_string(call) : to_string(call);
}

const char* verb_of_several(RankCondition condition) {
  return condition == RankCondition::kSilent ? "are silent" : verb(condition);
}

/// Finds the causes for one report.
class Analysis {
 public:
  explicit Analysis(const HangReport& report) : report_(report), histories_(GroupHistory::of(report.ranks)) {}

  std::vector<Finding> findings() const {
    std::vector<Finding> all;
    for (const GroupHistory& history : histories_) {
      if (const auto divergence = history.divergence()) all.push_back(diverged(history, *divergence));
    }
    const bool disagree = !all.empty();
    for (const auto& [cause, ranks] : lost_together(disagree)) all.push_back(lost(ranks));
    if (!all.empty()) return all;
    for (const auto& [rank, waiting] : awaited()) all.push_back(keeps_waiting(rank, waiting));
    if (const auto circle = circle_of_messages()) all.push_back(*circle);
    // Ranks that have not come to a collective because they wait for a message of somebody else are no cause.
    if (!all.empty()) return all;
    for (const GroupHistory& history : histories_) add_absent(history, all);
    return all;
  }

 private:
  const RankStatus* status_of(int rank) const {
    const auto found = std::find_if(report_.ranks.begin(), report_.ranks.end(),
                                    [&](const RankStatus& status) { return status.rank == rank; });
    return found == report_.ranks.end() ? nullptr : &*found;
  }

  /// The other end of the message that a rank waits for; nothing if it waits for none.
  std::optional<int> awaited_by(int rank) const {
    const RankStatus* const status = status_of(rank);
    const CallRecord* const call = status == nullptr ? nullptr : call_of(*status);
    // A rank whose call failed had waited too.
    if (call == nullptr || call->peer < 0 || call->state == CallState::kDone) return std::nullopt;
    return call->peer;
  }

  /// The ranks at the ends of all chains of ranks that wait for messages, with those that wait for them, directly or
  /// not. Not those that wait for something themselves.
  std::map<int, std::vector<int>> awaited() const {
    std::map<int, std::vector<int>> found;
    for (const RankStatus& status : report_.ranks) {
      int end = status.rank;
      std::set<int> passed;
      for (auto next = awaited_by(end); next && passed.insert(end).second; next = awaited_by(end)) end = *next;
      if (end == status.rank || passed.contains(end)) continue;
      const RankStatus* const last = status_of(end);
      if (last != nullptr && last->condition == RankCondition::kWaiting) continue;
      found[end].push_back(status.rank);
    }
    return found;
  }

  Finding keeps_waiting(int rank, const std::vector<int>& waiting) const {
    Finding finding;
    finding.ranks = {rank};
    finding.what = with_verb(waiting, "waits", "wait") + " for messages of rank " + std::to_string(rank);
    const RankStatus* const status = status_of(rank);
    if (status != nullptr && status->snapshot && status->snapshot->task) {
      finding.what += ", which is in " + status->snapshot->task->what;
    }
    describe(rank, finding);
    finding.advice = report_.fatal
                         ? "see why it does not send: an endless loop, a read that blocks, another order of calls"
                         : "nothing, if it is only slow; the job goes on until the communication timeout";
    return finding;
  }

  std::optional<Finding> circle_of_messages() const {
    for (const RankStatus& status : report_.ranks) {
      std::vector<int> circle{status.rank};
      for (auto next = awaited_by(status.rank); next; next = awaited_by(*next)) {
        if (*next == status.rank) {
          Finding finding;
          finding.ranks = circle;
          finding.what = rank_text(circle) + " wait for messages of each other";
          for (const int rank : circle) describe(rank, finding);
          finding.advice = "let one of them send before it receives";
          return finding;
        }
        if (std::find(circle.begin(), circle.end(), *next) != circle.end()) break;
        circle.push_back(*next);
      }
    }
    return std::nullopt;
  }

  /// The lost ranks, by cause. Each dead or stopped process is a cause of its own; ranks that are silent or missing for
  /// the same reason, such as a lost host, are one cause.
  std::map<std::pair<int, std::string>, std::vector<int>> lost_together(bool disagree) const {
    std::map<std::pair<int, std::string>, std::vector<int>> causes;
    for (const RankStatus& status : report_.ranks) {
      // A rank whose call was refused ends because of the disagreement.
      if (is_alive(status.condition) || (disagree && failed_last(status))) continue;
      const bool alone = status.condition == RankCondition::kDead || status.condition == RankCondition::kStopped;
      causes[{alone ? status.rank : report_.world_size, verb(status.condition) + status.detail}].push_back(status.rank);
    }
    return causes;
  }

  /// Adds the last call of a rank, the calls in which others wait for it, and its stack.
  void describe(int rank, Finding& finding) const {
    const RankStatus* status = status_of(rank);
    if (status == nullptr || !status->snapshot) {
      add_once(finding, "nothing is known of what " + rank_text(finding.ranks) + " did");
    } else {
      describe_calls(*status, finding);
    }
    describe_waiting(rank, finding);
    for (const GroupHistory& history : histories_) {
      const auto gap = history.gap();
      if (!gap || std::find(gap->absent.begin(), gap->absent.end(), rank) == gap->absent.end()) continue;
      add_once(finding, with_verb(gap->waiting, "waits", "wait") + " for it in " + short_text(*gap->call) + " at " +
                            place(*gap->call));
    }
    if (status == nullptr || status->stack.empty()) return;
    finding.details.push_back("rank " + std::to_string(rank) + " is at:");
    for (const std::string& frame : status->stack) finding.details.push_back("  " + frame);
  }

  static void describe_calls(const RankStatus& status, Finding& finding) {
    const std::string who = "rank " + std::to_string(status.rank);
    const std::string is_in = status.condition == RankCondition::kDead ? " was in " : " is in ";
    const CallRecord* const call = call_of(status);
    if (call != nullptr && is_waited_in(*call)) {
      finding.details.push_back(who + is_in + call_in_task(status, *call));
      return;
    }
    if (status.snapshot->task) finding.details.push_back(who + is_in + status.snapshot->task->what);
    finding.details.push_back(call == nullptr ? who + " has made no call yet"
                                              : who + " was last in " + to_string(*call));
  }

  /// Those that wait for a message of it.
  void describe_waiting(int rank, Finding& finding) const {
    for (const RankStatus& status : report_.ranks) {
      if (awaited_by(status.rank) != rank) continue;
      add_once(finding,
               "rank " + std::to_string(status.rank) + " waits for it in " + call_in_task(status, *call_of(status)));
    }
  }

  static void add_once(Finding& finding, std::string detail) {
    auto& details = finding.details;
    if (std::find(details.begin(), details.end(), detail) == details.end()) details.push_back(std::move(detail));
  }

  Finding lost(const std::vector<int>& ranks) const {
    const RankStatus& status = *status_of(ranks.front());
    Finding finding;
    finding.ranks = ranks;
    finding.what = with_verb(ranks, verb(status.condition), verb_of_several(status.condition)) +
                   (status.detail.empty() ? "" : ": " + status.detail);
    if (status.condition != RankCondition::kMissing) {
      for (const int rank : ranks) describe(rank, finding);
    }
    switch (status.condition) {
      case RankCondition::kMissing:
        finding.advice = "see whether it was started, and whether it reaches the rendezvous";
        break;
      case RankCondition::kStopped:
        finding.advice = "continue it (kill -CONT), or look for the debugger or scheduler that stopped it";
        break;
      case RankCondition::kDead:
        finding.advice = "look at its last lines of output; for SIGKILL, at the kernel's log for lack of memory";
        break;
      default:
        finding.advice = "look at its host: is it up, reachable, and not out of memory?";
    }
    return finding;
  }

  static Finding diverged(const GroupHistory& history, const GroupHistory::Divergence& divergence) {
    Finding finding;
    const auto& sides = divergence.ranks_by_signature;
    const auto largest = std::max_element(
        sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    finding.what =
        "the ranks of group " + history.name() + " disagree on their call #" + std::to_string(divergence.sequence);
    for (auto side = sides.begin(); side != sides.end(); ++side) {
      const CallRecord& example = *divergence.example.at(side->first);
      finding.details.push_back(with_verb(side->second, "calls", "call") + " " + signature(example) + " at " +
                                place(example));
      if (side != largest) finding.ranks.insert(finding.ranks.end(), side->second.begin(), side->second.end());
    }
    std::sort(finding.ranks.begin(), finding.ranks.end());
    const bool tie = finding.ranks.size() * 2 == finding.ranks.size() + largest->second.size();
    finding.what += tie ? "" : "; the odd one out is " + rank_text(finding.ranks);
    finding.advice =
        "make the calls of a group the same, in the same order, on all its ranks: look for a condition "
        "that depends on the rank or its data";
    return finding;
  }

  void add_absent(const GroupHistory& history, std::vector<Finding>& all) const {
    const auto gap = history.gap();
    if (!gap) return;
    Finding finding;
    finding.ranks = gap->absent;
    finding.what = with_verb(gap->absent, "has", "have") + " not come to " + short_text(*gap->call) + ", that " +
                   with_verb(gap->waiting, "waits", "wait") + " in at " + place(*gap->call);
    for (const int rank : gap->absent) describe(rank, finding);
    if (const auto sequence = history.first_call_from_other_lines()) {
      finding.details.push_back("call #" + std::to_string(*sequence) +
                                " is the first that the ranks made from different lines");
    }
    finding.advice = report_.fatal ? "see why it did not come: a call skipped, an endless loop, a read that blocks"
                                   : "nothing, if it is only slow; the job goes on until the communication timeout";
    all.push_back(std::move(finding));
  }

  const HangReport& report_;
  std::vector<GroupHistory> histories_;
};

}  // namespace

HangReport analyse(std::string trigger, bool fatal, std::int64_t time_ns, int world_size,
                   std::vector<RankStatus> ranks) {
  HangReport report;
  report.trigger = std::move(trigger);
  report.fatal = fatal;
  report.time_ns = time_ns;
  report.world_size = world_size;
  report.ranks = std::move(ranks);
  report.findings = Analysis(report).findings();
  return report;
}

const char* verb(RankCondition condition) {
  switch (condition) {
    case RankCondition::kWaiting:
      return "waits";
    case RankCondition::kRunning:
      return "runs";
    case RankCondition::kStopped:
      return "is stopped";
    case RankCondition::kSilent:
      return "is silent";
    case RankCondition::kDead:
      return "is dead";
    case RankCondition::kMissing:
      return "never came";
  }
  return "?";
}

}  // namespace tessera::flight
