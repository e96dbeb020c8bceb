#include "launch/output_tail.h"

namespace tessera::launch {
namespace {

constexpr std::string_view kWhat = "what():";
constexpr std::string_view kOurs = "tessera: ";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

}  // namespace

void OutputTail::add(Stream stream, std::string_view line) {
  const bool cut = line.size() > kMaxLineBytes;
  lines_.push_back(std::string(line.substr(0, kMaxLineBytes)) + (cut ? " ..." : ""));
  if (lines_.size() > kMaxLines) lines_.pop_front();
  if (stream != Stream::kError) return;
  const std::string_view kept = line.substr(0, kMaxLineBytes);
  // The C++ runtime writes the first, for an exception that nobody caught.
  if (const auto what = kept.find(kWhat); what != std::string_view::npos) {
    error_text_ = trimmed(kept.substr(what + kWhat.size()));
  } else if (kept.starts_with(kOurs)) {
    error_text_ = kept.substr(kOurs.size());
  }
}

}  // namespace tessera::launch
