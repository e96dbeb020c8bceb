#pragma once

#include <tessera/checkpoint/slice_place.h>
#include <tessera/checkpoint/tensor_slice.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::checkpoints {

/// The elements of a slice lie in the whole tensor as runs of equal length. In the slice itself, kept contiguous, the
/// runs follow one another.
class SliceRuns {
 public:
  /// Throws ConfigError, naming the tensor by `what`, when the slice does not lie inside `shape`.
  SliceRuns(const std::vector<std::int64_t>& shape, const TensorSlice& slice, const std::string& what);
  /// The same of a place, in its view.
  SliceRuns(const SlicePlace& place, const std::string& what)
      : SliceRuns(place.view, {place.starts, place.sizes}, what) {}

  std::int64_t num_runs() const { return num_runs_; }
  /// In elements.
  std::int64_t run_length() const { return run_length_; }

  /// Where the first element of a run lies in the whole tensor; ascends with the number of the run.
  std::int64_t first_of(std::int64_t run) const {
    std::int64_t first = start_;
    for (std::size_t d = outer_.size(); d-- > 0; run /= outer_[d].size) {
      first += run % outer_[d].size * outer_[d].stride;
    }
    return first;
  }

  /// Calls `visit(first)` with the place of each run's first element in the whole tensor, in order.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::vector<std::int64_t> index(outer_.size(), 0);
    for (std::int64_t run = 0; run < num_runs_; ++run) {
      std::int64_t first = start_;
      for (std::size_t d = 0; d < outer_.size(); ++d) first += index[d] * outer_[d].stride;
      visit(first);
      for (std::size_t d = outer_.size(); d-- > 0;) {
        if (++index[d] < outer_[d].size) break;
        index[d] = 0;
      }
    }
  }

 private:
  struct Dim {
    std::int64_t size;
    std::int64_t stride;
  };
  std::vector<Dim> outer_;  // the dimensions that runs do not reach across
  std::int64_t start_ = 0;
  std::int64_t run_length_ = 1;
  std::int64_t num_runs_ = 1;
};

}  // namespace tessera::checkpoints
