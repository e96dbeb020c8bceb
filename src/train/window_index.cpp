#include "train/window_index.h"

#include <algorithm>

namespace tessera::train {

WindowIndex::WindowIndex(std::int64_t sequence_length, bool fills) : sequence_length_(sequence_length), fills_(fills) {}

void WindowIndex::add_stretch(std::int64_t num_tokens) {
  // The first token of a stretch has none before it to be predicted from.
  const std::int64_t predicted = std::max<std::int64_t>(num_tokens - 1, 0);
  const std::int64_t rest = predicted % sequence_length_;
  const std::int64_t whole = predicted / sequence_length_;
  ends_.push_back(num_windows() + whole + (fills_ && rest != 0 ? 1 : 0));
  if (!fills_) num_left_out_ += rest;
}

WindowIndex::Place WindowIndex::find(std::int64_t window) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), window);
  const auto stretch = end - ends_.begin();
  return {stretch, stretch == 0 ? window : window - *(end - 1)};
}

}  // namespace tessera::train
