#include <tessera/shard/gradient_tree.h>

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <bit>
#include <string>

namespace tessera {

GradientTree::GradientTree(std::int64_t num_contributions) : num_contributions_(num_contributions) {
  if (num_contributions < 1 || !std::has_single_bit(static_cast<std::uint64_t>(num_contributions))) {
    throw InternalError("a tree of " + std::to_string(num_contributions) + " contributions; expected a power of two");
  }
}

void GradientTree::add(std::int64_t number, at::Tensor contribution) {
  if (number < 0 || number >= num_contributions_) {
    throw ConfigError("expected a micro-batch of 0 to " + std::to_string(num_contributions_ - 1) + ", found " +
                      std::to_string(number));
  }
  if (!added_.insert(number).second) {
    throw ConfigError("micro-batch " + std::to_string(number) + " came twice in one step");
  }
  int level = 0;
  // As long as the neighbour is there, the two make the next level's.
  for (auto neighbour = sums_.extract({level, number ^ 1}); !neighbour.empty();
       neighbour = sums_.extract({level, number ^ 1})) {
    // x + y and y + x are the same bits: the order of a pair is no matter.
    contribution.add_(neighbour.mapped());
    number >>= 1;
    ++level;
  }
  sums_.emplace(std::pair(level, number), std::move(contribution));
}

at::Tensor GradientTree::take() {
  if (!is_complete() || sums_.size() != 1) throw InternalError("a sum of gradients was taken before it was complete");
  at::Tensor sum = sums_.begin()->second;
  sums_.clear();
  added_.clear();
  return sum;
}

}  // namespace tessera
