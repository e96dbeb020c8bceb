#pragma once

#include <tessera/mesh/axis_layout.h>

#include <string>
#include <vector>

namespace tessera::mesh {

/// The sizes whose product is `num_ranks` and that change the fewest of the wanted ones, and those the least (by
/// ratio). Requires: at least one axis, `num_ranks` above zero.
std::vector<AxisSpec> nearest_sizes(const std::vector<AxisSpec>& wanted, int num_ranks);

/// "" when the sizes multiply to `num_ranks`; else what they multiply to and the two ways to mend it. Requires: sizes
/// of 1 and more.
std::string product_fault(const std::vector<AxisSpec>& axes, int num_ranks);

}  // namespace tessera::mesh
