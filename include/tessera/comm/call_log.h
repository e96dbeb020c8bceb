#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class CallState { kStarted, kDone, kFailed };

/// One communication call as this rank made it.
struct CallRecord {
  std::uint64_t sequence = 0;  ///< counts the calls of one group, from 1; 0 marks a slot never used
  std::string group;
  const char* operation = "";
  const char* dtype = "";
  std::int64_t num_bytes = 0;
  const char* file = "";
  std::uint32_t line = 0;
  CallState state = CallState::kStarted;
};

/// "all_reduce #12 of group world, 4096 bytes of Float, at train.cpp:40 (done)"
std::string to_string(const CallRecord& record);

}  // namespace tessera
