#include "comm/call_recorder.h"

namespace tessera {

std::string to_string(const CallRecord& record) {
  const char* state = record.state == CallState::kStarted ? "started"
                      : record.state == CallState::kDone  ? "done"
                                                          : "failed";
  std::string text =
      std::string(record.operation) + " #" + std::to_string(record.sequence) + " of group " + record.group;
  if (record.num_bytes > 0) text += ", " + std::to_string(record.num_bytes) + " bytes of " + record.dtype;
  return text + ", at " + record.file + ":" + std::to_string(record.line) + " (" + state + ")";
}

namespace comm {

std::uint64_t CallRecorder::begin(const std::string& group, std::uint64_t sequence, const char* operation,
                                  const char* dtype, std::int64_t num_bytes, const std::source_location& where) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t ticket = next_++;
  CallRecord& record = records_[ticket % kCapacity];
  record.sequence = sequence;
  record.group = group;
  record.operation = operation;
  record.dtype = dtype;
  record.num_bytes = num_bytes;
  record.file = where.file_name();
  record.line = where.line();
  record.state = CallState::kStarted;
  return ticket;
}

void CallRecorder::end(std::uint64_t ticket, bool failed) {
  const std::lock_guard lock(mutex_);
  if (next_ - ticket > kCapacity) return;  // overwritten since
  records_[ticket % kCapacity].state = failed ? CallState::kFailed : CallState::kDone;
}

std::vector<CallRecord> CallRecorder::recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> calls;
  for (std::uint64_t ticket = next_ > kCapacity ? next_ - kCapacity : 0; ticket < next_; ++ticket) {
    calls.push_back(records_[ticket % kCapacity]);
  }
  return calls;
}

}  // namespace comm
}  // namespace tessera
