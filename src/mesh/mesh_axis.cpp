#include <tessera/mesh/mesh_axis.h>
#include "mesh/axis_names.h"
#include "mesh/mesh_state.h"

namespace tessera {

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

}  // namespace tessera
