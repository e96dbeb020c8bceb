#pragma once

#include <cstdint>
#include <vector>

namespace tessera::train {

/// Which extent of tokens each window lies in. An extent is a file, or a document if documents are separate.
class WindowIndex {
 public:
  /// `fills`: the last window of an extent need not be full.
  WindowIndex(std::int64_t sequence_length, bool fills);

  void add_extent(std::int64_t num_tokens);

  std::int64_t num_windows() const { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t num_tokens_left_out() const { return num_left_out_; }

  struct Place {
    std::int64_t extent;  ///< in the order in which they were added
    std::int64_t window;  ///< of that extent
  };
  /// Requires: 0 <= window < num_windows(). O(log extents).
  Place find(std::int64_t window) const;

 private:
  std::int64_t sequence_length_;
  bool fills_;
  std::vector<std::int64_t> ends_;  ///< after each extent: windows so far
  std::int64_t num_left_out_ = 0;
};

}  // namespace tessera::train
