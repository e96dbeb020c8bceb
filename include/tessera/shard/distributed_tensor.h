#pragma once

#include <tessera/mesh/device_mesh.h>
#include <tessera/shard/placement.h>
#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A tensor that the ranks of a mesh hold together: this rank's local tensor, and one placement for each axis.
///
///   auto rows = DistributedTensor::of(whole, mesh.sub({"tp"}), {Placement::shard(0)});
///   auto columns = rows.redistribute({Placement::shard(1)});
///   at::Tensor again = columns.gather();  // equal to `whole`
///
/// Gradients pass through all of these. The gradient of a replicated or partial tensor is whole and the same on every
/// rank: that is so when all ranks compute one loss. A handle: cheap to copy.
class DistributedTensor {
 public:
  /// This rank's part of a tensor that all ranks have, with the same values. Nothing is communicated; in backward, the
  /// gradient of `whole` is gathered. A partial tensor is `whole` on the first rank of its axis and zero on the others.
  /// Throws ConfigError when the placements do not fit.
  static DistributedTensor of(const at::Tensor& whole, const DeviceMesh& mesh, std::vector<Placement> placements);
  /// `local` is what this rank holds of a tensor of this shape. Nothing is communicated. Throws ConfigError, with the
  /// shape that was expected, when it is not.
  static DistributedTensor from_local(at::Tensor local, const DeviceMesh& mesh, std::vector<Placement> placements,
                                      std::vector<std::int64_t> shape);

  const at::Tensor& local() const { return local_; }
  const DeviceMesh& mesh() const { return mesh_; }
  /// One for each of the mesh's axes.
  const std::vector<Placement>& placements() const { return placements_; }
  /// Of the whole tensor.
  const std::vector<std::int64_t>& shape() const { return shape_; }
  /// What this rank holds of it. A partial tensor counts as whole.
  Slice slice() const;
  /// This rank's part along an axis that shards the tensor in one piece. Throws ConfigError for another placement, and
  /// when other axes divide the same dimension.
  TensorPartition partition(const std::string& axis) const;

  /// Whether redistribute(to) moves anything between ranks. The same on every rank.
  bool needs_communication(const std::vector<Placement>& to) const;
  /// The same tensor in other places, with the fewest bytes that single steps along an axis can do. Collective.
  DistributedTensor redistribute(std::vector<Placement> to) const;
  /// The whole tensor, on every rank. Collective.
  at::Tensor gather() const;

 private:
  DistributedTensor(at::Tensor local, DeviceMesh mesh, std::vector<Placement> placements,
                    std::vector<std::int64_t> shape);

  at::Tensor local_;
  DeviceMesh mesh_;
  std::vector<Placement> placements_;
  std::vector<std::int64_t> shape_;
};

}  // namespace tessera
