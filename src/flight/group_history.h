#pragma once

#include <tessera/flight/hang_report.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::flight {

/// The collectives of one group as its members recorded them.
class GroupHistory {
 public:
  /// Of every group that any rank knows.
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

  /// The collective that some wait in and others have not come to.
  struct Gap {
    const CallRecord* call;
    std::vector<int> waiting;
    std::vector<int> absent;  ///< members that are known to be behind, or of whom nothing is known
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

}  // namespace tessera::flight
