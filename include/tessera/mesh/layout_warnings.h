#pragma once

#include <tessera/comm/topology.h>
#include <tessera/mesh/axis_layout.h>

#include <string>
#include <vector>

namespace tessera {

/// The axes of a layout from the one that talks most to the one that talks least, by the names in use: "tp", then "cp"
/// and "ep" (the one declared later first), then "dp", then "pp". An axis of another name is taken to talk just more
/// than the axis declared before it (and, declared first, least of all), which agrees with the default order.
std::vector<std::string> default_chattiness(const AxisLayout& layout);

/// One warning for each axis that crosses nodes while an axis that talks less lies inside them, with an order of the
/// axes that does better. Nothing when no order does. `chattiness` names all axes, the one that talks most first; empty
/// means `default_chattiness`. Pure arithmetic: O(ranks * axes). Throws ConfigError when `chattiness` is not an
/// arrangement of the axes.
std::vector<std::string> layout_warnings(const AxisLayout& layout, const Topology& topology,
                                         const std::vector<std::string>& chattiness = {});

}  // namespace tessera
