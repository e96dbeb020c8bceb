#pragma once

#include <tessera/comm/communicator.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera {

class MeshState;

/// This rank's line along one axis of a mesh, or along several seen as one (`DeviceMesh::flatten`). A handle: cheap to
/// copy, and it keeps the mesh's groups alive.
class MeshAxis {
 public:
  /// "dp"; "dp+tp" for several.
  std::string name() const;
  /// The stable name of this rank's line: "dp.3".
  std::string id() const;
  int size() const;
  /// This rank's position on the axis; equal to comm().rank().
  int coordinate() const;
  /// The world ranks along the axis, this one among them, by coordinate.
  std::vector<int> world_ranks() const;

  /// The group of `world_ranks()`. Made at the first call, then kept. Local: nothing is sent before the group is used.
  /// Axes of size 1 do not count: axes that differ only in such share a group. Thread-safety: any thread.
  Communicator comm() const;

 private:
  friend class DeviceMesh;
  MeshAxis(std::shared_ptr<MeshState> state, std::vector<int> axes);

  std::shared_ptr<MeshState> state_;
  std::vector<int> axes_;  // of the whole mesh, ascending
};

}  // namespace tessera
