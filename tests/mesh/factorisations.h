#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace tessera::testing {

/// Calls `visit` with each way to write `product` as `num_factors` ordered factors.
inline void for_each_factorisation(int product, int num_factors, const std::function<void(std::vector<int>)>& visit,
                                   std::vector<int> chosen = {}) {
  if (num_factors == 1) {
    chosen.push_back(product);
    visit(chosen);
    return;
  }
  for (int factor = 1; factor <= product; ++factor) {
    if (product % factor == 0) {
      auto longer = chosen;
      longer.push_back(factor);
      for_each_factorisation(product / factor, num_factors - 1, visit, longer);
    }
  }
}

inline std::vector<std::vector<std::string>> all_orders(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::vector<std::vector<std::string>> orders;
  do {
    orders.push_back(names);
  } while (std::next_permutation(names.begin(), names.end()));
  return orders;
}

}  // namespace tessera::testing
