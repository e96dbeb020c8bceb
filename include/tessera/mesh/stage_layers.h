#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// How many of `num_layers` layers each of `num_stages` pipeline stages holds: counts differ by one at most, the first
/// stages holding more. Throws ConfigError when there are more stages than layers.
std::vector<int> even_layers(int num_layers, int num_stages);

/// Consecutive layers for each stage such that the costliest stage costs as little as possible and, among such, the
/// stages differ least. Costs are relative: times or bytes, all of the same unit. The same costs give the same result
/// on every rank. O(stages * layers^2). Throws ConfigError when there are more stages than layers or a cost is negative
/// or not finite.
std::vector<int> balanced_layers(const std::vector<double>& layer_costs, int num_stages);

/// What to tell the user when the stages hold different numbers of layers; nothing when they are even.
std::optional<std::string> uneven_layers_note(const std::vector<int>& layers_per_stage);

}  // namespace tessera
