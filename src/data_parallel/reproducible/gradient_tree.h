#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace tessera::data_parallel {

/// Adds up contributions along a binary tree over their numbers, in whatever order they come: 0+1, 2+3, then the sums.
/// The result has the same bits as any other machine's that adds the same contributions so, also when one part of the
/// tree is added here and the rest elsewhere.
class GradientTree {
 public:
  /// `num_contributions` is a power of two.
  explicit GradientTree(std::int64_t num_contributions);

  /// Takes the tensor: it may be added to. Throws ConfigError for a number out of range or given before.
  void add(std::int64_t number, at::Tensor contribution);
  bool is_complete() const { return num_added_ == num_contributions_; }
  std::int64_t num_added() const { return num_added_; }
  /// The sum; the tree is empty afterwards. Requires: is_complete().
  at::Tensor take();
  void clear();

 private:
  std::int64_t num_contributions_;
  std::int64_t num_added_ = 0;
  std::map<std::pair<int, std::int64_t>, at::Tensor> sums_;  // by level and place, complete and not yet added
  std::map<std::int64_t, bool> added_;
};

}  // namespace tessera::data_parallel
