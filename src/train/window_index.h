#pragma once

#include <cstdint>
#include <vector>

namespace tessera::train {

/// Which stretch of tokens each window lies in. A stretch is a file, or a document where they are kept apart.
class WindowIndex {
 public:
  /// `fills`: the last window of a stretch need not be full.
  WindowIndex(std::int64_t sequence_length, bool fills);

  void add_stretch(std::int64_t num_tokens);

  std::int64_t num_windows() const { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t num_tokens_left_out() const { return num_left_out_; }

  struct Place {
    std::int64_t stretch;  ///< in the order in which they were added
    std::int64_t window;   ///< of that stretch
  };
  /// Requires: 0 <= window < num_windows(). O(log stretches).
  Place find(std::int64_t window) const;

 private:
  std::int64_t sequence_length_;
  bool fills_;
  std::vector<std::int64_t> ends_;  ///< after each stretch: windows so far
  std::int64_t num_left_out_ = 0;
};

}  // namespace tessera::train
