#pragma once

#include <tessera/flight/call_record.h>

#include <cstdint>

namespace tessera::flight {

/// Hears of every call of a rank when it has ended (see Recorder::listen()).
class CallListener {
 public:
  CallListener() = default;
  virtual ~CallListener() = default;
  CallListener(const CallListener&) = delete;
  CallListener& operator=(const CallListener&) = delete;

  /// `done_ns`: when the bytes had arrived, which for a call that somebody waits for later is before it ended.
  /// `blocked_ns`: how long it kept its caller from anything else, while it began and while it was waited for; what is
  /// left of its time was hidden behind other work.
  /// Runs on the thread that waited for the call: be quick, and do not throw.
  virtual void call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) = 0;
};

}  // namespace tessera::flight
