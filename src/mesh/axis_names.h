#pragma once

#include <tessera/mesh/axis_layout.h>

#include <string>
#include <vector>

namespace tessera {
struct AxisSpec;
}

namespace tessera::mesh {

/// "dp, tp, pp"
std::string join(const std::vector<std::string>& parts, const std::string& separator);
/// "{dp: 4, tp: 2}"
std::string describe(const std::vector<AxisSpec>& axes);
std::vector<std::string> names_of(const std::vector<AxisSpec>& axes);

/// What is wrong with `listed` as an arrangement of all of `names`, with the fix; empty when nothing is. `what` names
/// the list in the message: "the order".
std::string arrangement_fault(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                              const std::string& what);

/// Every fault of the axes themselves (names, sizes, their product), each with its fix.
std::vector<std::string> axis_faults(const std::vector<AxisSpec>& axes);

/// Throws ConfigError with all `faults`, one a line under `headline`. Does nothing when there is none.
void throw_if_any(const std::string& headline, const std::vector<std::string>& faults);

/// The sizes whose product is `num_ranks` that change the fewest of the wanted sizes and, among such, change them least
/// (by ratio). Requires: at least one axis, `num_ranks` above zero.
std::vector<AxisSpec> nearest_sizes(const std::vector<AxisSpec>& wanted, int num_ranks);

/// "" when the sizes multiply to `num_ranks`; else what they multiply to and two ways to fix it. Requires: sizes of 1
/// and more.
std::string product_fault(const std::vector<AxisSpec>& axes, int num_ranks);

}  // namespace tessera::mesh
