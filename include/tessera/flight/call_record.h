#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class CallState : std::uint8_t { kStarted, kDone, kFailed };

/// One communication call as a rank made it.
struct CallRecord {
  /// Counts the calls of one group from 1, collectives and messages apart: all members make the same collectives, so
  /// the same number is the same call on each.
  std::uint64_t sequence = 0;
  std::string group;
  std::string operation;
  bool is_collective = true;  ///< all but send and recv
  std::string dtype;          ///< empty where no tensor is involved
  std::vector<std::int64_t> shape;
  std::string file;
  std::uint32_t line = 0;
  CallState state = CallState::kStarted;
  std::int64_t started_ns = 0;  ///< since 1970
  std::int64_t ended_ns = 0;    ///< 0 while under way

  bool operator==(const CallRecord&) const = default;
};

/// "all_reduce #12 of group world, Float [32, 32], at train.cpp:40 (done)"
std::string to_string(const CallRecord& record);

/// "all_reduce Float [32, 32]"
std::string signature(const CallRecord& record);

/// What all members of a group must agree on. Pieces may differ in shape between ranks; a sum needs equal ones.
std::string agreement_key(const CallRecord& record);

}  // namespace tessera
