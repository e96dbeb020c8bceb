#include "mesh/mesh_state.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace tessera {

MeshState::MeshState(World world, AxisLayout layout, DeviceMeshOptions options)
    : world_(std::move(world)), ids_(std::move(layout)), options_(std::move(options)) {}

Communicator MeshState::comm(const std::vector<int>& axes) {
  // Axes of size 1 add no ranks. Left in the key, they would make a second group, and connections, for the same ranks;
  // and in an order that may differ from rank to rank, where `split` promises only to tell different ranks apart.
  std::vector<int> key;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(key), [&](int axis) { return layout().size(axis) > 1; });
  std::sort(key.begin(), key.end());

  const std::lock_guard lock(mutex_);
  auto found = comms_.find(key);
  if (found == comms_.end()) {
    found = comms_.emplace(key, make_comm(key)).first;
  }
  return found->second;
}

Communicator MeshState::make_comm(const std::vector<int>& axes) const {
  const auto slice = layout().slice(axes, world_.rank());
  std::vector<std::string> names;
  for (int axis : axes) {
    names.push_back(layout().name(axis));
  }
  auto comm = world_.comm().split(slice.ranks(), ids_.slice_id_of(names, world_.rank()));
  if (options_.timeout().count() > 0) {
    comm = comm.with_timeout(options_.timeout());
  }
  if (!options_.strategy().empty()) {
    comm = comm.with_strategy(parse_communication_strategy(options_.strategy()));
  }
  return comm;
}

}  // namespace tessera
