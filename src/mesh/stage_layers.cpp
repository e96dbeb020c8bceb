#include <tessera/core/error.h>
#include <tessera/mesh/stage_layers.h>
#include "mesh/axis_names.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera {
namespace {

using mesh::join;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_counts(int num_layers, int num_stages) {
  if (num_stages < 1 || num_layers < num_stages) {
    throw ConfigError(std::to_string(num_layers) + " layers cannot fill " + std::to_string(num_stages) +
                      " pipeline stages: use 1 to " + std::to_string(std::max(num_layers, 1)) +
                      " stages, each of which needs a layer");
  }
}

struct Cuts {
  double value = kInfinity;
  std::vector<int> layers_per_stage;
};

/// The best way to cut the layers into stages, where `combine(best of the stages before, cost of the next)` is to be
/// small and no stage may cost more than `cap`.
template <class Combine>
Cuts best_cuts(const std::vector<double>& costs, int num_stages, double cap, Combine combine) {
  const auto n = costs.size();
  const auto stages = static_cast<std::size_t>(num_stages);
  std::vector<double> prefix(n + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), prefix.begin() + 1);

  // best[s][j]: of the first j layers on s stages; from[s][j]: where the last of these stages begins.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, kInfinity));
  std::vector<std::vector<std::size_t>> from(stages + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t j = s; j + (stages - s) <= n; ++j) {
      for (std::size_t i = s - 1; i < j; ++i) {
        const double stage = prefix[j] - prefix[i];
        const double value = stage <= cap ? combine(best[s - 1][i], stage) : kInfinity;
        // Of equals the last: later stages hold fewer layers, as with even_layers.
        if (value <= best[s][j]) {
          best[s][j] = value;
          from[s][j] = i;
        }
      }
    }
  }

  Cuts cuts{best[stages][n], std::vector<int>(stages)};
  for (std::size_t s = stages, end = n; s > 0; end = from[s][end], --s) {
    cuts.layers_per_stage[s - 1] = static_cast<int>(end - from[s][end]);
  }
  return cuts;
}

}  // namespace

std::vector<int> even_layers(int num_layers, int num_stages) {
  check_counts(num_layers, num_stages);
  std::vector<int> counts(static_cast<std::size_t>(num_stages), num_layers / num_stages);
  for (int stage = 0; stage < num_layers % num_stages; ++stage) {
    ++counts[static_cast<std::size_t>(stage)];
  }
  return counts;
}

std::vector<int> balanced_layers(const std::vector<double>& layer_costs, int num_stages) {
  check_counts(static_cast<int>(layer_costs.size()), num_stages);
  for (double cost : layer_costs) {
    if (!std::isfinite(cost) || cost < 0) {
      throw ConfigError("a layer cost is " + std::to_string(cost) + ": give finite costs, zero or more");
    }
  }
  const double bottleneck = best_cuts(layer_costs, num_stages, kInfinity, [](double so_far, double stage) {
                              return std::max(so_far, stage);
                            }).value;
  // The bottleneck is one of the very sums that are compared with the cap, so no tolerance is needed.
  return best_cuts(layer_costs, num_stages, bottleneck,
                   [](double so_far, double stage) { return so_far + stage * stage; })
      .layers_per_stage;
}

std::optional<std::string> uneven_layers_note(const std::vector<int>& layers_per_stage) {
  const auto [least, most] = std::minmax_element(layers_per_stage.begin(), layers_per_stage.end());
  if (least == layers_per_stage.end() || *least == *most) {
    return std::nullopt;
  }
  std::vector<std::string> counts;
  counts.reserve(layers_per_stage.size());
  for (int count : layers_per_stage) {
    counts.push_back(std::to_string(count));
  }
  return "the pipeline stages hold unequal numbers of layers (" + join(counts, ", ") +
         "): the costliest stage sets the pace of all";
}

}  // namespace tessera
