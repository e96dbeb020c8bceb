#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tessera {

/// Adds up contributions along a binary tree over their numbers, in whatever order they arrive: 0+1, 2+3, then these
/// sums. The bits of the result depend only on the contributions, even when one part of the tree is added here and the
/// rest on other ranks.
class GradientTree {
 public:
  /// `num_contributions` is a power of two.
  explicit GradientTree(std::int64_t num_contributions);

  /// Takes over the tensor, and may write to it. Throws ConfigError for a number out of range or given before.
  void add(std::int64_t number, at::Tensor contribution);
  bool is_empty() const { return added_.empty(); }
  bool is_complete() const { return static_cast<std::int64_t>(added_.size()) == num_contributions_; }
  /// The sum; the tree is empty afterwards. Requires: is_complete().
  at::Tensor take();

 private:
  std::int64_t num_contributions_;
  std::map<std::pair<int, std::int64_t>, at::Tensor> sums_;  // by level and place, complete and not yet added
  std::set<std::int64_t> added_;
};

}  // namespace tessera
