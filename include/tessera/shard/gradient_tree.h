#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tessera {

/// Adds up contributions along a binary tree over their numbers, in whatever order they come: 0+1, 2+3, then the sums.
/// The result has the same bits as any other machine's that adds the same contributions so, also when one part of the
/// tree is added here and the rest elsewhere.
class GradientTree {
 public:
  /// `num_contributions` is a power of two.
  explicit GradientTree(std::int64_t num_contributions);

  /// Takes the tensor: it may be added to. Throws ConfigError for a number out of range or given before.
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
