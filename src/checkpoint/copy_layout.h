#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/save_plan.h"

namespace tessera::checkpoints {

/// Where the slices that a rank writes lie in its copy of them.
///
/// A large one lies in its pages as it does in those of its file: then direct I/O takes it from there, without a copy.
struct CopyLayout {
  std::vector<std::size_t> places;  ///< for each of SavePlan::of_rank, if the copy begins at a page
  std::size_t num_bytes = 0;

  static CopyLayout of(const SavePlan& plan, int rank);

  bool operator==(const CopyLayout&) const = default;
};

}  // namespace tessera::checkpoints
