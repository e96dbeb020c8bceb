#include <tessera/comm/reduce_op.h>
#include <tessera/comm/strategy.h>
#include <tessera/core/error.h>

#include <array>
#include <string>

namespace tessera {
namespace {

constexpr std::array<std::string_view, 5> kStrategies = {"allreduce", "ring", "tree", "hierarchical", "adaptive"};

}  // namespace

std::string_view to_string(ReduceOp op) {
  constexpr std::array<std::string_view, 5> kNames = {"sum", "avg", "min", "max", "product"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view to_string(CommunicationStrategy strategy) { return kStrategies[static_cast<std::size_t>(strategy)]; }

CommunicationStrategy parse_communication_strategy(std::string_view name) {
  for (std::size_t i = 0; i < kStrategies.size(); ++i) {
    if (kStrategies[i] == name) return static_cast<CommunicationStrategy>(i);
  }
  throw ConfigError("there is no communication strategy \"" + std::string(name) +
                    "\"; choose allreduce, ring, tree, hierarchical or adaptive");
}

}  // namespace tessera
