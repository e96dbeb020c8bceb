#include <tessera/core/error.h>
#include <tessera/mesh/layout_warnings.h>
#include "mesh/axis_names.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

using mesh::arrangement_fault;
using mesh::join;
using mesh::names_of;

/// An axis that crosses nodes, and the axes inside them that talk less.
struct Conflict {
  std::string crossing;
  std::vector<std::string> inside;
};

int talk_of(const std::string& name) {
  constexpr std::pair<const char*, int> kKnown[] = {{"tp", 4}, {"cp", 3}, {"ep", 3}, {"dp", 2}, {"pp", 1}};
  const auto found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const auto& k) { return name == k.first; });
  return found == std::end(kKnown) ? 0 : found->second;
}

std::vector<std::string> reversed(const std::vector<std::string>& names) { return {names.rbegin(), names.rend()}; }

bool crosses_nodes(const AxisLayout& layout, int axis, const Topology& topology) {
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    if (!topology.same_node(rank, layout.line(axis, rank).start)) {
      return true;
    }
  }
  return false;
}

std::vector<Conflict> conflicts_of(const AxisLayout& layout, const Topology& topology,
                                   const std::vector<std::string>& chattiness) {
  std::vector<Conflict> conflicts;
  std::vector<std::string> inside;  // among the axes that talk less than the one looked at
  for (const auto& name : reversed(chattiness)) {
    const int axis = layout.axis_index(name);
    if (layout.size(axis) == 1) {
      continue;  // nobody to talk to
    }
    if (!crosses_nodes(layout, axis, topology)) {
      inside.push_back(name);
    } else if (!inside.empty()) {
      conflicts.push_back({name, inside});
    }
  }
  return conflicts;
}

std::size_t num_pairs(const std::vector<Conflict>& conflicts) {
  std::size_t pairs = 0;
  for (const auto& conflict : conflicts) {
    pairs += conflict.inside.size();
  }
  return pairs;
}

/// Empty when neither of the two sensible orders beats `num_now` pairs. Two, because node-by-node placement of ranks
/// wants the chattiest axis fastest, and round-robin placement wants it slowest.
std::vector<std::string> better_order(const AxisLayout& layout, const Topology& topology,
                                      const std::vector<std::string>& chattiness, std::size_t num_now) {
  std::vector<std::string> best;
  for (const auto& order : {reversed(chattiness), chattiness}) {
    const auto pairs = num_pairs(conflicts_of(AxisLayout(layout.axes(), order), topology, chattiness));
    if (pairs < num_now) {
      best = order;
      num_now = pairs;
    }
  }
  return best;
}

}  // namespace

std::vector<std::string> default_chattiness(const AxisLayout& layout) {
  auto names = names_of(layout.axes());
  std::vector<std::string> known;
  std::copy_if(names.begin(), names.end(), std::back_inserter(known), talk_of);
  // Of two equals (cp and ep), the one declared later comes first.
  std::reverse(known.begin(), known.end());
  std::stable_sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return talk_of(a) > talk_of(b); });
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (talk_of(names[i]) == 0) {
      known.insert(i == 0 ? known.end() : std::find(known.begin(), known.end(), names[i - 1]), names[i]);
    }
  }
  return known;
}

std::vector<std::string> layout_warnings(const AxisLayout& layout, const Topology& topology,
                                         const std::vector<std::string>& chattiness) {
  const auto ranking = chattiness.empty() ? default_chattiness(layout) : chattiness;
  if (auto fault = arrangement_fault(names_of(layout.axes()), ranking, "the chattiness"); !fault.empty()) {
    throw ConfigError(fault);
  }
  const auto conflicts = conflicts_of(layout, topology, ranking);
  if (conflicts.empty()) {
    return {};
  }
  const auto better = better_order(layout, topology, ranking, num_pairs(conflicts));
  std::vector<std::string> warnings;
  for (auto conflict = conflicts.rbegin(); conflict != conflicts.rend() && !better.empty(); ++conflict) {
    warnings.push_back("axis " + conflict->crossing + " crosses nodes while " + join(conflict->inside, " and ") +
                       ", which talks less, lies inside them: the order {" + join(better, ", ") +
                       "} (slowest first) gives the inside of nodes to the axes that talk most; now it is {" +
                       join(layout.order(), ", ") + "}");
  }
  return warnings;
}

}  // namespace tessera
