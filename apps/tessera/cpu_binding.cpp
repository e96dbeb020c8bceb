#include "tessera/cpu_binding.h"

#include <tessera/core/error.h>

#include <hwloc.h>

#include <memory>
#include <utility>

namespace tessera::app {
namespace {

using Cpus = std::vector<int>;
using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using Set = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

Topology load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw InternalError("hwloc cannot start");
  Topology topology(raw, &hwloc_topology_destroy);
  const bool described = synthetic.empty() || hwloc_topology_set_synthetic(raw, synthetic.c_str()) == 0;
  if (!described || hwloc_topology_load(raw) != 0) throw InternalError("hwloc cannot read the machine's topology");
  return topology;
}

Set set_of(const Cpus& cpus) {
  Set set(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  for (const int cpu : cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(cpu));
  return set;
}

/// The allowed processors of each object of a type, in the machine's order; objects without any are left out.
std::vector<Cpus> parts_of(hwloc_topology_t topology, hwloc_obj_type_t type, const Cpus& allowed) {
  const Set allowed_set = set_of(allowed);
  std::vector<Cpus> parts;
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;) {
    const Set common(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
    hwloc_bitmap_and(common.get(), object->cpuset, allowed_set.get());
    Cpus cpus;
    for (int cpu = -1; (cpu = hwloc_bitmap_next(common.get(), cpu)) >= 0;) cpus.push_back(cpu);
    if (!cpus.empty()) parts.push_back(std::move(cpus));
  }
  return parts;
}

std::vector<Cpus> deal_cores(const std::vector<Cpus>& cores, std::size_t num_ranks) {
  if (cores.size() < num_ranks) {
    throw ConfigError("bind core: there are " + std::to_string(cores.size()) + " cores for " +
                      std::to_string(num_ranks) + " ranks; start fewer ranks, or use bind none");
  }
  // Equally many for all: a rank with more cores would only wait for the others.
  const std::size_t each = cores.size() / num_ranks;
  std::vector<Cpus> ranks(num_ranks);
  for (std::size_t core = 0; core < each * num_ranks; ++core) {
    Cpus& rank = ranks[core / each];
    rank.insert(rank.end(), cores[core].begin(), cores[core].end());
  }
  return ranks;
}

std::vector<Cpus> deal_nodes(const std::vector<Cpus>& nodes, std::size_t num_ranks) {
  std::vector<Cpus> ranks;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) ranks.push_back(nodes[rank * nodes.size() / num_ranks]);
  return ranks;
}

}  // namespace

std::vector<std::vector<int>> plan_binding_on(const std::string& synthetic, Binding binding, int num_ranks,
                                              const std::vector<int>& allowed) {
  const Topology topology = load(synthetic);
  const bool by_core = binding == Binding::kCore;
  const auto parts = parts_of(topology.get(), by_core ? HWLOC_OBJ_CORE : HWLOC_OBJ_NUMANODE, allowed);
  if (parts.empty()) throw InternalError("hwloc finds none of the launcher's processors");
  const auto count = static_cast<std::size_t>(num_ranks);
  return by_core ? deal_cores(parts, count) : deal_nodes(parts, count);
}

std::vector<std::vector<int>> plan_binding(Binding binding, int num_ranks, const std::vector<int>& allowed) {
  return plan_binding_on("", binding, num_ranks, allowed);
}

}  // namespace tessera::app
