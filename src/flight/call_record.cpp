#include <tessera/flight/call_record.h>

#include <algorithm>
#include <array>

namespace tessera {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

std::string data_text(const CallRecord& record) {
  return record.dtype.empty() ? "" : record.dtype + " " + shape_text(record.shape);
}

}  // namespace

std::string to_string(const CallRecord& record) {
  const char* state = record.state == CallState::kStarted ? "started"
                      : record.state == CallState::kDone  ? "done"
                                                          : "failed";
  std::string text = record.operation + " #" + std::to_string(record.sequence) + " of group " + record.group;
  if (!record.dtype.empty()) text += ", " + data_text(record);
  return text + ", at " + record.file + ":" + std::to_string(record.line) + " (" + state + ")";
}

std::string signature(const CallRecord& record) {
  return record.dtype.empty() ? record.operation : record.operation + " " + data_text(record);
}

std::string agreement_key(const CallRecord& record) {
  constexpr std::array<const char*, 4> kEqualShapes = {"all_reduce", "broadcast", "reduce", "all_reduce_contributions"};
  const bool equal_shapes = std::any_of(kEqualShapes.begin(), kEqualShapes.end(),
                                        [&](const char* operation) { return record.operation == operation; });
  // A root alone passes a tensor to scatter.
  if (record.operation == "scatter" || record.dtype.empty()) return record.operation;
  return equal_shapes ? signature(record) : record.operation + " " + record.dtype;
}

}  // namespace tessera
