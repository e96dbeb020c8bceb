#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class CallState : std::uint8_t { kStarted, kDone, kFailed };

/// One communication call as a rank made it.
struct CallRecord {
  /// Counts the calls of one group from 1, collectives and messages separately. All members make the same collectives,
  /// so a number denotes the same collective on each of them.
  std::uint64_t sequence = 0;
  std::string group;
  std::string operation;
  bool is_collective = true;  ///< all but send and recv
  int peer = -1;              ///< the rank of the world at the other end of a message; -1: none, or not known
  std::string dtype;          ///< empty where no tensor is involved
  std::vector<std::int64_t> shape;
  std::string file;
  std::uint32_t line = 0;
  CallState state = CallState::kStarted;
  std::int64_t started_ns = 0;  ///< since 1970
  std::int64_t ended_ns = 0;    ///< 0 while under way
  /// Since when its caller waits for a message under way; 0: it does other work meanwhile. A receive may be posted long
  /// before anybody needs it.
  std::int64_t awaited_ns = 0;

  bool operator==(const CallRecord&) const = default;
};

/// "all_reduce #12 of group world, Float [32, 32], at train.cpp:40 (done)"
std::string to_string(const CallRecord& record);

/// "all_reduce Float [32, 32]"
std::string signature(const CallRecord& record);

/// The part of a call that must be equal on all members of a group. It has the shape only where shapes must be equal,
/// as in a sum; pieces may differ in shape between ranks.
std::string agreement_key(const CallRecord& record);

}  // namespace tessera

namespace tessera::flight {

/// Is notified of every call of a rank when the call has ended (see Recorder::listen()).
class CallListener {
 public:
  CallListener() = default;
  virtual ~CallListener() = default;
  CallListener(const CallListener&) = delete;
  CallListener& operator=(const CallListener&) = delete;

  /// `done_ns`: when the bytes had arrived. A call ends when its caller has waited for it, which may be later.
  /// `blocked_ns`: how long the call blocked its caller, at its start and in `wait()`. During the rest of its time the
  /// caller did other work.
  /// Runs on the thread that waited for the call: be quick, and do not throw.
  virtual void call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) = 0;

  /// See comm::Task. On the thread of the task.
  virtual void task_ended(const std::string& /*what*/, std::int64_t /*started_ns*/, std::int64_t /*ended_ns*/) {}
};

}  // namespace tessera::flight
