#include "mesh/axis_names.h"

#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

namespace tessera::mesh {
namespace {

bool is_valid_name(const std::string& name) {
  // '.', '+' and '/' separate the parts of group names, and "self.5" is the group of rank 5 alone.
  return !name.empty() && name != "self" && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == '-'); });
}

}  // namespace

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    joined += (i == 0 ? "" : separator) + parts[i];
  }
  return joined;
}

std::string describe(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> parts;
  parts.reserve(axes.size());
  for (const auto& axis : axes) {
    parts.push_back(axis.name + ": " + std::to_string(axis.size));
  }
  return "{" + join(parts, ", ") + "}";
}

std::vector<std::string> names_of(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> names;
  names.reserve(axes.size());
  for (const auto& axis : axes) {
    names.push_back(axis.name);
  }
  return names;
}

std::string arrangement_fault(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                              const std::string& what) {
  if (std::is_permutation(names.begin(), names.end(), listed.begin(), listed.end())) {
    return "";
  }
  return what + " is {" + join(listed, ", ") + "}: list each of {" + join(names, ", ") + "} exactly once";
}

std::vector<std::string> axis_faults(const std::vector<AxisSpec>& axes) {
  std::vector<std::string> faults;
  std::set<std::string> seen;
  std::int64_t product = 1;
  for (const auto& axis : axes) {
    if (!is_valid_name(axis.name)) {
      faults.push_back("\"" + axis.name +
                       "\" is no axis name: use a letter, then letters, digits, '_' or '-' (and not \"self\")");
    } else if (!seen.insert(axis.name).second) {
      faults.push_back("axis " + axis.name + " is there twice: give each axis a name of its own");
    }
    if (axis.size < 1) {
      faults.push_back("axis " + axis.name + " has size " + std::to_string(axis.size) + ": use 1 or more");
    } else if (product <= std::numeric_limits<int>::max()) {
      product *= axis.size;
    }
  }
  if (product > std::numeric_limits<int>::max()) {
    faults.push_back("the sizes " + describe(axes) + " multiply to more ranks than can be counted: make them smaller");
  }
  return faults;
}

void throw_if_any(const std::string& headline, const std::vector<std::string>& faults) {
  if (!faults.empty()) {
    throw ConfigError(headline + "\n  - " + join(faults, "\n  - "));
  }
}

namespace {

/// Tries all factorisations. Their number is at most that of the divisors to the power of the axes, which is small for
/// any real number of ranks. It runs only when a job is about to be refused.
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
