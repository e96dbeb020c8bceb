#pragma once

#include <string_view>

namespace tessera {

/// How the contributions of the ranks are combined. `kAvg` is refused for integer tensors: the result would depend on
/// the rounding, and silently so.
enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

std::string_view to_string(ReduceOp op);

}  // namespace tessera
