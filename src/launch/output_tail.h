#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "launch/console.h"

namespace tessera::launch {

/// What a rank wrote last, for the report of its failure.
class OutputTail {
 public:
  static constexpr std::size_t kMaxLines = 20;
  static constexpr std::size_t kMaxLineBytes = 1000;

  void add(Stream stream, std::string_view line);

  /// The last lines of both streams, in the order in which they came.
  const std::deque<std::string>& lines() const { return lines_; }
  /// What the last uncaught exception says, or the last message of a Tessera program; empty when there was neither.
  const std::string& error_text() const { return error_text_; }

 private:
  std::deque<std::string> lines_;
  std::string error_text_;
};

}  // namespace tessera::launch
