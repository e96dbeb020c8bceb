#include <tessera/shard/placement_ops.h>

#include <ATen/ATen.h>

#include <vector>

namespace tessera {
namespace {

/// With the dimension of the shard as two: its blocks, and the indices of each.
at::Tensor in_blocks(const at::Tensor& tensor, const Placement& shard) {
  return tensor.unflatten(shard.dim(), {shard.blocks(), tensor.size(shard.dim()) / shard.blocks()});
}

at::Tensor out_of_blocks(const at::Tensor& tensor, const Placement& shard) {
  return tensor.flatten(shard.dim(), shard.dim() + 1);
}

/// How many indices of each block each rank has.
std::vector<std::int64_t> block_sizes(const Placement& shard, std::int64_t size, int num_parts) {
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < num_parts; ++part) sizes.push_back(shard.in_block(size, num_parts, part).size);
  return sizes;
}

}  // namespace

at::Tensor take_part(const at::Tensor& whole, const Placement& shard, int num_parts, int part) {
  const Range range = shard.in_block(whole.size(shard.dim()), num_parts, part);
  if (shard.blocks() == 1) return whole.narrow(shard.dim(), range.start, range.size);
  return out_of_blocks(in_blocks(whole, shard).narrow(shard.dim() + 1, range.start, range.size), shard);
}

at::Tensor gather_parts(const at::Tensor& part, const Placement& shard, std::int64_t size, const Communicator& comm) {
  if (comm.size() == 1) return part;
  const auto sizes = block_sizes(shard, size, comm.size());
  if (shard.blocks() == 1) return comm.all_gather(part, shard.dim(), sizes);
  return out_of_blocks(comm.all_gather(in_blocks(part, shard), shard.dim() + 1, sizes), shard);
}

at::Tensor reduce_to_part(const at::Tensor& partial, const Placement& shard, const Communicator& comm) {
  if (comm.size() == 1) return partial;
  const auto sizes = block_sizes(shard, partial.size(shard.dim()), comm.size());
  if (shard.blocks() == 1) return comm.reduce_scatter(partial, ReduceOp::kSum, shard.dim(), sizes);
  return out_of_blocks(comm.reduce_scatter(in_blocks(partial, shard), ReduceOp::kSum, shard.dim() + 1, sizes), shard);
}

at::Tensor pad_part(const at::Tensor& part, const Placement& shard, std::int64_t size, int num_parts, int rank) {
  auto shape = part.sizes().vec();
  shape[shard.dim()] = size;
  at::Tensor whole = at::zeros(shape, part.options().requires_grad(false));
  const Range range = shard.in_block(size, num_parts, rank);
  in_blocks(whole, shard).narrow(shard.dim() + 1, range.start, range.size).copy_(in_blocks(part, shard));
  return whole;
}

}  // namespace tessera
