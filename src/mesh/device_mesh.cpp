#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/ranks.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "mesh/axis_names.h"

namespace tessera {

/// What all copies and sub-meshes of a mesh share.
class MeshState {
 public:
  MeshState(World world, AxisLayout layout, DeviceMeshOptions options);

  const World& world() const { return world_; }
  const AxisLayout& layout() const { return ids_.layout(); }
  const ProcessGroupIds& ids() const { return ids_; }
  const DeviceMeshOptions& options() const { return options_; }

  /// The group of this rank's slice along `axes`. Thread-safety: any thread.
  Communicator comm(const std::vector<int>& axes);

 private:
  Communicator make_comm(const std::vector<int>& axes) const;

  World world_;
  ProcessGroupIds ids_;
  DeviceMeshOptions options_;
  std::mutex mutex_;
  std::map<std::vector<int>, Communicator> comms_;  // by axes of size above 1, ascending
};

MeshAxis::MeshAxis(std::shared_ptr<MeshState> state, std::vector<int> axes)
    : state_(std::move(state)), axes_(std::move(axes)) {}

std::string MeshAxis::name() const {
  return mesh::join(mesh::names_of(state_->layout().sub_layout(axes_).axes()), "+");
}

std::string MeshAxis::id() const {
  return state_->ids().slice_id_of(mesh::names_of(state_->layout().sub_layout(axes_).axes()), state_->world().rank());
}

int MeshAxis::size() const { return state_->layout().sub_layout(axes_).num_ranks(); }

int MeshAxis::coordinate() const {
  const int rank = state_->world().rank();
  return state_->layout().slice(axes_, rank).index_of(rank);
}

std::vector<int> MeshAxis::world_ranks() const { return state_->layout().slice(axes_, state_->world().rank()).ranks(); }

Communicator MeshAxis::comm() const { return state_->comm(axes_); }

MeshState::MeshState(World world, AxisLayout layout, DeviceMeshOptions options)
    : world_(std::move(world)), ids_(std::move(layout)), options_(std::move(options)) {}

Communicator MeshState::comm(const std::vector<int>& axes) {
  // Axes of size 1 add no ranks. If they were in the key, there would be a second group, with connections, for the same
  // ranks. Ranks might also make the two in different orders, and `split` only promises to distinguish groups of
  // different ranks.
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

namespace {

using mesh::arrangement_fault;
using mesh::axis_faults;
using mesh::describe;
using mesh::names_of;
using mesh::product_fault;
using mesh::throw_if_any;

std::vector<int> all_axes(const AxisLayout& layout) {
  std::vector<int> axes(static_cast<std::size_t>(layout.num_axes()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

/// Checks everything before any of it is used: a fault must be reported here, not at the first collective.
AxisLayout resolve(const World& world, const std::vector<AxisSpec>& axes, const DeviceMeshOptions& options) {
  auto faults = axis_faults(axes);
  if (faults.empty()) {
    faults.push_back(product_fault(axes, world.size()));
  }
  if (!options.order().empty()) {
    faults.push_back(arrangement_fault(names_of(axes), options.order(), "the order"));
  }
  if (!options.chattiness().empty()) {
    faults.push_back(arrangement_fault(names_of(axes), options.chattiness(), "the chattiness"));
  }
  if (options.timeout().count() < 0) {
    faults.push_back("the timeout is " + std::to_string(options.timeout().count()) +
                     " ms: use 0 (the world's) or more");
  }
  if (!options.strategy().empty()) {
    try {
      parse_communication_strategy(options.strategy());
    } catch (const ConfigError& error) {
      faults.emplace_back(error.what());
    }
  }
  std::erase(faults, "");
  throw_if_any("The mesh " + describe(axes) + " is not possible (rank " + std::to_string(world.rank()) + "):", faults);
  return AxisLayout(axes, options.order());
}

}  // namespace

const FieldList<DeviceMeshOptions>& DeviceMeshOptions::fields() {
  using Options = DeviceMeshOptions;
  static const auto list =
      FieldList<Options>("mesh")
          .add("order", &Options::order_, "the axes from the slowest to the fastest; empty: as declared")
          .add("chattiness", &Options::chattiness_, "the axes from the one that talks most; empty: by their names")
          .add_choice("strategy", &Options::strategy_, {"", "allreduce", "ring", "tree", "hierarchical", "adaptive"},
                      "the algorithm of the groups; empty: the world's")
          .add("timeout", &Options::timeout_, "how long a call in a group may take; 0: as in the world");
  return list;
}

DeviceMesh::DeviceMesh(const World& world, const std::vector<AxisSpec>& axes, const DeviceMeshOptions& options)
    : DeviceMesh(std::make_shared<MeshState>(world, resolve(world, axes, options), options), {}) {
  axes_ = all_axes(state_->layout());
  slice_ = state_->layout().slice(axes_, world.rank());
  if (world.rank() == 0) {
    const Logger log("mesh", world.rank(), LogLevel::kInfo, options.log_sink());
    for (const auto& warning : layout_warnings()) {
      log.warning(warning);
    }
  }
}

DeviceMesh::DeviceMesh(std::shared_ptr<MeshState> state, std::vector<int> axes)
    : state_(std::move(state)), axes_(std::move(axes)), slice_(state_->layout(), axes_, state_->world().rank()) {}

DeviceMesh DeviceMesh::linear(const World& world, const std::string& axis, const DeviceMeshOptions& options) {
  return DeviceMesh(world, std::vector<AxisSpec>{{axis, world.size()}}, options);
}

DeviceMesh DeviceMesh::two_d(const World& world, int dp, int tp, const DeviceMeshOptions& options) {
  return DeviceMesh(world, {{"dp", dp}, {"tp", tp}}, options);
}

DeviceMesh DeviceMesh::three_d(const World& world, const ThreeDSizes& sizes, const DeviceMeshOptions& options) {
  return DeviceMesh(world, {{"dp", sizes.dp}, {"tp", sizes.tp}, {"pp", sizes.pp}}, options);
}

const World& DeviceMesh::world() const { return state_->world(); }

int DeviceMesh::world_rank() const { return state_->world().rank(); }

MeshAxis DeviceMesh::operator[](const std::string& axis) const {
  const auto index = static_cast<std::size_t>(slice_.layout().axis_index(axis));
  return MeshAxis(state_, {axes_[index]});
}

DeviceMesh DeviceMesh::sub(const std::vector<std::string>& axes) const {
  std::vector<int> chosen;
  for (int index : slice_.layout().axis_indices(axes)) {
    chosen.push_back(axes_[static_cast<std::size_t>(index)]);
  }
  return DeviceMesh(state_, std::move(chosen));
}

MeshAxis DeviceMesh::flatten() const {
  auto axes = axes_;
  std::sort(axes.begin(), axes.end());
  return MeshAxis(state_, std::move(axes));
}

int DeviceMesh::rank() const { return slice_.index_of(world_rank()); }

std::vector<int> DeviceMesh::coordinates(int world_rank) const {
  return slice_.layout().coordinates(slice_.index_of(world_rank));
}

int DeviceMesh::device_at(const std::vector<int>& coordinates) const {
  return state_->world().topology().local_rank_of(rank_at(coordinates));
}

const ProcessGroupIds& DeviceMesh::group_ids() const { return state_->ids(); }

std::vector<std::string> DeviceMesh::layout_warnings() const {
  return tessera::layout_warnings(state_->layout(), state_->world().topology(), state_->options().chattiness());
}

}  // namespace tessera
