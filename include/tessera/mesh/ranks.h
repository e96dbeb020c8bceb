#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/world.h>

#include <memory>
#include <string>
#include <utility>
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
  /// Axes of size 1 are ignored: a flattened axis with and without them has the same group. Thread-safety: any thread.
  Communicator comm() const;

 private:
  friend class DeviceMesh;
  MeshAxis(std::shared_ptr<MeshState> state, std::vector<int> axes);

  std::shared_ptr<MeshState> state_;
  std::vector<int> axes_;  // of the whole mesh, ascending
};

/// The ranks that a function works with: a world, an axis of a mesh, or any communicator.
class Ranks {
 public:
  Ranks(const World& world) : comm_(world.comm()) {}    // NOLINT: meant to convert
  Ranks(const MeshAxis& axis) : comm_(axis.comm()) {}   // NOLINT: meant to convert
  Ranks(Communicator comm) : comm_(std::move(comm)) {}  // NOLINT: meant to convert

  const Communicator& comm() const { return comm_; }

 private:
  Communicator comm_;
};

}  // namespace tessera
