#include "launch/line_splitter.h"

#include <algorithm>

namespace tessera::launch {

void LineSplitter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find_first_of("\r\n");
    append(bytes.substr(0, end));
    if (end == std::string_view::npos) return;
    end_line(bytes[end]);
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::append(std::string_view bytes) {
  if (bytes.empty()) return;
  after_return_ = false;
  while (!bytes.empty()) {
    const auto piece = bytes.substr(0, kMaxBytes - partial_.size());
    partial_.append(piece);
    bytes.remove_prefix(piece.size());
    after_cut_ = partial_.size() == kMaxBytes;
    if (after_cut_) {
      take_(partial_);
      partial_.clear();
    }
  }
}

void LineSplitter::end_line(char ending) {
  // "\r\n" is one end; a piece that was just cut already had one.
  const bool nothing_to_end = partial_.empty() && (ending == '\r' || after_return_ || after_cut_);
  if (!nothing_to_end) take_(partial_);
  partial_.clear();
  after_return_ = ending == '\r';
  after_cut_ = false;
}

void LineSplitter::finish() {
  if (!partial_.empty()) take_(partial_);
  partial_.clear();
}

}  // namespace tessera::launch
