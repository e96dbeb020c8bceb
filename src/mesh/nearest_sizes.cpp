#include "mesh/nearest_sizes.h"
#include "mesh/axis_names.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera::mesh {
namespace {

/// Walks through all factorisations. Their number is that of the divisors to the power of the axes, small for any
/// number of ranks there is; it runs only when a job is about to be refused.
class Search {
 public:
  Search(const std::vector<AxisSpec>& wanted, int num_ranks) : wanted_(wanted), current_(wanted), best_(wanted) {
    try_axis(0, num_ranks, 0.0);
  }

  const std::vector<AxisSpec>& best() const { return best_; }

 private:
  // One more changed axis outweighs any change of a size: a ratio of two ints has a logarithm below 22.
  static constexpr double kChanged = 1000.0;

  double cost(std::size_t axis, int size) const {
    const double ratio = static_cast<double>(size) / std::max(wanted_[axis].size, 1);
    return size == wanted_[axis].size ? 0.0 : kChanged + std::abs(std::log(ratio));
  }

  void try_axis(std::size_t axis, int remaining, double spent) {
    if (spent >= best_cost_) {
      return;
    }
    if (axis + 1 == wanted_.size()) {
      accept(axis, remaining, spent);
      return;
    }
    for (int size = 1; size <= remaining / size; ++size) {
      if (remaining % size == 0) {
        step(axis, size, remaining, spent);
        if (size != remaining / size) {
          step(axis, remaining / size, remaining, spent);
        }
      }
    }
  }

  void step(std::size_t axis, int size, int remaining, double spent) {
    current_[axis].size = size;
    try_axis(axis + 1, remaining / size, spent + cost(axis, size));
  }

  void accept(std::size_t axis, int size, double spent) {
    const double total = spent + cost(axis, size);
    if (total < best_cost_) {
      current_[axis].size = size;
      best_ = current_;
      best_cost_ = total;
    }
  }

  const std::vector<AxisSpec>& wanted_;
  std::vector<AxisSpec> current_;
  std::vector<AxisSpec> best_;
  double best_cost_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<AxisSpec> nearest_sizes(const std::vector<AxisSpec>& wanted, int num_ranks) {
  return Search(wanted, num_ranks).best();
}

std::string product_fault(const std::vector<AxisSpec>& axes, int num_ranks) {
  std::int64_t product = 1;
  for (const auto& axis : axes) {
    product *= axis.size;
    if (product > std::numeric_limits<int>::max()) {
      break;  // so large a product is refused anyway, and must not overflow
    }
  }
  if (product == num_ranks) {
    return "";
  }
  const std::string needed =
      product > std::numeric_limits<int>::max() ? "more than 2147483647" : std::to_string(product);
  std::string fault =
      "the sizes " + describe(axes) + " need " + needed + " ranks, the world has " + std::to_string(num_ranks);
  if (axes.empty()) {
    return fault + ": name at least one axis";
  }
  return fault + ": use " + describe(nearest_sizes(axes, num_ranks)) + ", or start " + needed + " ranks";
}

}  // namespace tessera::mesh
