#include "checkpoint/slice_runs.h"

#include <tessera/core/error.h>

#include <algorithm>

#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {
namespace {

void check_inside(const std::vector<std::int64_t>& shape, const TensorSlice& slice, const std::string& what) {
  bool inside = slice.starts.size() == shape.size() && slice.sizes.size() == shape.size();
  for (std::size_t d = 0; inside && d < shape.size(); ++d) {
    inside = slice.starts[d] >= 0 && slice.sizes[d] >= 0 && slice.starts[d] <= shape[d] &&
             slice.sizes[d] <= shape[d] - slice.starts[d];
  }
  if (inside) return;
  throw ConfigError(what + " has the shape " + shape_text(shape) + "; a slice that starts at " +
                    shape_text(slice.starts) + " with sizes " + shape_text(slice.sizes) + " is not inside");
}

}  // namespace

SliceRuns::SliceRuns(const std::vector<std::int64_t>& shape, const TensorSlice& slice, const std::string& what) {
  check_inside(shape, slice, what);
  if (std::find(slice.sizes.begin(), slice.sizes.end(), 0) != slice.sizes.end()) {
    num_runs_ = run_length_ = 0;
    return;
  }
  // From the innermost dimension outwards, a run grows until a dimension is not taken whole.
  std::int64_t stride = 1;
  bool whole = true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    start_ += slice.starts[d] * stride;
    if (whole) {
      run_length_ *= slice.sizes[d];
      whole = slice.sizes[d] == shape[d];
    } else {
      outer_.insert(outer_.begin(), {slice.sizes[d], stride});
      num_runs_ *= slice.sizes[d];
    }
    stride *= shape[d];
  }
}

}  // namespace tessera::checkpoints
