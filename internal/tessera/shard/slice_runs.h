#pragma once

#include <tessera/shard/slice.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// The runs of a slice: contiguous elements of its tensor, in row-major order. In the slice itself the runs follow one
/// another without a gap. They ascend in both.
class SliceRuns {
 public:
  struct Run {
    std::int64_t first = 0;   ///< element of the tensor with which it begins
    std::int64_t begin = 0;   ///< element of the slice with which it begins
    std::int64_t length = 0;  ///< in elements, above 0

    std::int64_t last_end() const { return first + length; }
  };

  explicit SliceRuns(const Slice& slice);

  std::int64_t num_runs() const { return num_runs_; }
  std::int64_t num_elements() const { return range_.size; }
  Run at(std::int64_t run) const;
  /// Which run holds this element of the slice.
  std::int64_t run_of(std::int64_t element) const { return run_in_selected(range_.start + element) - first_run_; }

 private:
  /// A dimension that runs do not reach across.
  struct Dim {
    std::vector<Range> indices;
    std::int64_t size;    // of all of them
    std::int64_t stride;  // in the tensor
  };
  /// A run within the innermost of those dimensions. `begin` counts the selected elements before it.
  struct Piece {
    std::int64_t begin;
    std::int64_t first;
    std::int64_t length;
  };

  std::int64_t run_in_selected(std::int64_t element) const;

  std::vector<Dim> outer_;  // the outermost first
  std::vector<Piece> pieces_;
  std::int64_t row_length_ = 1;  // of all pieces
  Range range_;
  std::int64_t first_run_ = 0;
  std::int64_t num_runs_ = 0;
};

}  // namespace tessera
