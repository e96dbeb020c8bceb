#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/world.h>
#include <tessera/mesh/mesh_axis.h>

#include <utility>

namespace tessera {

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
