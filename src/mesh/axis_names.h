#pragma once

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

/// What is wrong with `listed` as an arrangement of all of `names`, with the fix; empty when nothing is. `what` is what
/// the user calls the list: "order".
std::string arrangement_fault(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                              const std::string& what);

/// Every fault of the axes themselves (names, sizes, their product), each with its fix.
std::vector<std::string> axis_faults(const std::vector<AxisSpec>& axes);

/// Throws ConfigError with all `faults`, one a line under `headline`. Does nothing when there is none.
void throw_if_any(const std::string& headline, const std::vector<std::string>& faults);

}  // namespace tessera::mesh
