#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/placement.h>

#include <ATen/core/Tensor.h>

namespace tessera {

// What one axis does with a tensor when its placement changes. None of these records a gradient of what it sends.

/// The part of a whole tensor that the rank at `part` holds; a view where one range of memory is enough.
at::Tensor take_part(const at::Tensor& whole, const Placement& shard, int num_parts, int part);

/// The whole of which each rank of the group has a part; `size` is that of the whole in the dimension of the shard.
at::Tensor gather_parts(const at::Tensor& part, const Placement& shard, std::int64_t size, const Communicator& comm);

/// This rank's part of the sum of the ranks' tensors.
at::Tensor reduce_to_part(const at::Tensor& partial, const Placement& shard, const Communicator& comm);

/// A tensor of zeros, with this rank's part in its place: the ranks' sum is the whole.
at::Tensor pad_part(const at::Tensor& part, const Placement& shard, std::int64_t size, int num_parts, int rank);

}  // namespace tessera
