#pragma once

#include <tessera/comm/world.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/process_group_ids.h>

#include <map>
#include <mutex>
#include <vector>

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

}  // namespace tessera
