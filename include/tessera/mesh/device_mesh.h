#pragma once

#include <tessera/comm/world.h>
#include <tessera/core/log.h>
#include <tessera/core/options.h>
#include <tessera/mesh/axis_layout.h>
#include <tessera/mesh/ranks.h>

#include <torch/arg.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct DeviceMeshOptions {
  /// The axes from the slowest to the fastest. Empty: as declared, the last one fastest. Set it when `layout_warnings`
  /// names a better one.
  TORCH_ARG(std::vector<std::string>, order) = {};
  /// The axes from the one that talks most to the one that talks least, for `layout_warnings`. Empty: by the names in
  /// use (see default_chattiness). Set it when axes have names of your own.
  TORCH_ARG(std::vector<std::string>, chattiness) = {};
  /// The algorithm of the groups, by name (see CommunicationStrategy). Empty: the world's.
  TORCH_ARG(std::string, strategy) = "";
  /// How long a call in a group may take. 0: as long as in the world.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::milliseconds(0);
  /// Takes the layout warnings of rank 0. Empty: standard error.
  TORCH_ARG(LogSink, log_sink) = nullptr;

 public:
  static const FieldList<DeviceMeshOptions>& fields();
};

/// The ranks of a world on named axes. A handle: cheap to copy; copies and sub-meshes share the groups.
///
///   DeviceMesh mesh(world, {{"dp", 4}, {"tp", 2}});
///   mesh["tp"].comm().all_reduce(partial);
///
/// A rank's memory is O(axes), plus the groups that it has used; no other group is ever made. Nothing here
/// communicates.
///
/// Note [One mesh]
/// Groups are made at their first use and identified by their names and ranks. Two meshes over one world that both have
/// a group of the same name and ranks must make it in the same order on every member. Pass copies of one mesh instead.
class DeviceMesh {
 public:
  /// Throws ConfigError, with the nearest sizes that would do, when the product of the sizes is not the world's size.
  /// A layout that will be slow is allowed; rank 0 logs `layout_warnings()`.
  DeviceMesh(const World& world, const std::vector<AxisSpec>& axes, const DeviceMeshOptions& options = {});

  /// One axis over all ranks.
  static DeviceMesh linear(const World& world, const std::string& axis = "dp", const DeviceMeshOptions& options = {});
  /// {dp, tp}, tp fastest unless the options say otherwise.
  static DeviceMesh two_d(const World& world, int dp, int tp, const DeviceMeshOptions& options = {});
  /// {dp, tp, pp}, pp fastest unless the options say otherwise: as RankMapping.
  static DeviceMesh three_d(const World& world, const ThreeDSizes& sizes, const DeviceMeshOptions& options = {});

  const World& world() const;
  int world_rank() const;

  // ---- Axes ---------------------------------------------------------------------------------------------------------

  const std::vector<AxisSpec>& axes() const { return slice_.layout().axes(); }
  /// Throws ConfigError, naming the axes there are, when there is none of that name.
  MeshAxis operator[](const std::string& axis) const;
  /// The mesh of these axes only: this rank's slice, all other coordinates fixed.
  DeviceMesh sub(const std::vector<std::string>& axes) const;
  /// All axes of this mesh seen as one, in the order of its ranks.
  MeshAxis flatten() const;

  // ---- Ranks: of this mesh's slice of the world ---------------------------------------------------------------------

  int size() const { return slice_.size(); }
  /// This rank's position in the mesh; equal to comm().rank().
  int rank() const;
  /// World ranks, ascending.
  std::vector<int> world_ranks() const { return slice_.ranks(); }
  /// One for each of `axes()`.
  std::vector<int> coordinates() const { return coordinates(world_rank()); }
  std::vector<int> coordinates(int world_rank) const;
  /// The world rank at these coordinates.
  int rank_at(const std::vector<int>& coordinates) const { return slice_.rank_at(coordinates); }
  /// The device of the rank at these coordinates: its index on that rank's node.
  int device_at(const std::vector<int>& coordinates) const;

  // ---- Groups -------------------------------------------------------------------------------------------------------

  /// The group of all ranks of this mesh (for a sub-mesh: of its slice). See MeshAxis::comm.
  Communicator comm() const { return flatten().comm(); }
  /// The names of all groups of the whole mesh.
  const ProcessGroupIds& group_ids() const;

  /// Why the layout of the whole mesh will be slow on these nodes, with a better order of the axes; empty when it is
  /// fine. O(ranks * axes).
  std::vector<std::string> layout_warnings() const;

 private:
  DeviceMesh(std::shared_ptr<MeshState> state, std::vector<int> axes);

  std::shared_ptr<MeshState> state_;
  std::vector<int> axes_;  // of the whole mesh, in the order in which they were named
  AxisSlice slice_;
};

}  // namespace tessera
