// The collectives of Communicator: shapes in, flat memory to the backend, shapes out.
#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <bit>
#include <utility>

#include "comm/algorithms/tree_engine.h"
#include "comm/call.h"
#include "comm/call_shapes.h"
#include "comm/engine/engine_backend.h"

namespace tessera {

using namespace comm;  // NOLINT: the helpers of this module

namespace {

/// A view costs a microsecond or two, and most tensors here are flat already.
at::Tensor flat(const at::Tensor& tensor) { return tensor.dim() == 1 ? tensor : tensor.view({-1}); }

void require_piece(Call& call, const at::Tensor& whole, const at::Tensor& piece, std::int64_t count) {
  if (!whole.is_contiguous() || !piece.is_contiguous()) call.refuse("both tensors must be contiguous");
  if (whole.scalar_type() != piece.scalar_type()) call.refuse("both tensors must have one type");
  if (piece.numel() != count) {
    call.refuse("expected a piece of " + std::to_string(count) + " elements on this rank, found " +
                std::to_string(piece.numel()));
  }
}

}  // namespace

// ---- all_reduce, broadcast, reduce: in place ------------------------------------------------------------------------

Work Communicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op, bool async, const Where& where) const {
  Call call(group_, "all_reduce", tensor, settings_.timeout, where);
  check_op(call, tensor, op);
  std::vector<at::Tensor> tensors{in_place(call, tensor)};
  auto options = options_for<c10d::AllreduceOptions>(settings_.timeout, async);
  options.reduceOp = comm::to_c10d(op);
  return call.keep(tensors.front()).start([&] { return route(tensor).allreduce(tensors, options); });
}

void Communicator::all_reduce(at::Tensor tensor, ReduceOp op, Where where) const {
  start_all_reduce(tensor, op, false, where).wait();
}
Work Communicator::all_reduce_async(at::Tensor tensor, ReduceOp op, Where where) const {
  return start_all_reduce(tensor, op, true, where);
}

Work Communicator::start_broadcast(const at::Tensor& tensor, int root, bool async, const Where& where) const {
  Call call(group_, "broadcast", tensor, settings_.timeout, where);
  check_rank(call, root, size(), "root");
  std::vector<at::Tensor> tensors{in_place(call, tensor)};
  auto options = options_for<c10d::BroadcastOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.keep(tensors.front()).start([&] { return route(tensor).broadcast(tensors, options); });
}

void Communicator::broadcast(at::Tensor tensor, int root, Where where) const {
  start_broadcast(tensor, root, false, where).wait();
}
Work Communicator::broadcast_async(at::Tensor tensor, int root, Where where) const {
  return start_broadcast(tensor, root, true, where);
}

Work Communicator::start_reduce(const at::Tensor& tensor, int root, ReduceOp op, bool async, const Where& where) const {
  Call call(group_, "reduce", tensor, settings_.timeout, where);
  check_rank(call, root, size(), "root");
  check_op(call, tensor, op);
  std::vector<at::Tensor> tensors{rank() == root ? in_place(call, tensor) : tensor.contiguous()};
  auto options = options_for<c10d::ReduceOptions>(settings_.timeout, async);
  options.rootRank = root;
  options.reduceOp = comm::to_c10d(op);
  return call.keep(tensors.front()).start([&] { return route(tensor).reduce(tensors, options); });
}

void Communicator::reduce(at::Tensor tensor, int root, ReduceOp op, Where where) const {
  start_reduce(tensor, root, op, false, where).wait();
}
Work Communicator::reduce_async(at::Tensor tensor, int root, ReduceOp op, Where where) const {
  return start_reduce(tensor, root, op, true, where);
}

at::Tensor Communicator::all_reduce_contributions(const std::vector<at::Tensor>& contributions, Where where) const {
  Call call(group_, "all_reduce_contributions", contributions.empty() ? at::Tensor() : contributions.front(),
            settings_.timeout, where);
  if (!std::has_single_bit(contributions.size()) || !std::has_single_bit(static_cast<unsigned>(size()))) {
    call.refuse("expected a power of two of contributions on a power of two of ranks, found " +
                std::to_string(contributions.size()) + " on " + std::to_string(size()));
  }
  std::vector<at::Tensor> copies;
  std::vector<comm::Buffer> buffers;
  for (const at::Tensor& contribution : contributions) {
    call.require(contribution.is_floating_point() && contribution.sizes() == contributions.front().sizes() &&
                     contribution.scalar_type() == contributions.front().scalar_type(),
                 "contributions must be floating-point tensors of one shape and type");
    copies.push_back(contribution.detach().clone(at::MemoryFormat::Contiguous));
    buffers.push_back(comm::buffer_of(copies.back()));
  }
  comm::sum_as_tree(buffers);
  std::vector<at::Tensor> tensors{copies.front()};
  const auto options = options_for<c10d::AllreduceOptions>(settings_.timeout, false);
  return call.result(tensors.front())
      .start([&] { return group_->backend(CommunicationStrategy::kTree, 0).allreduce(tensors, options); })
      .result();
}

// ---- all_gather -----------------------------------------------------------------------------------------------------

Work Communicator::start_all_gather_into(Call& call, const at::Tensor& whole, const at::Tensor& piece,
                                         const Sizes& counts, bool async) const {
  const auto options = options_for<c10d::AllgatherOptions>(settings_.timeout, async);
  require_piece(call, whole, piece, counts[static_cast<std::size_t>(rank())]);
  at::Tensor out = flat(whole);
  at::Tensor in = flat(piece);
  call.keep(out).keep(in);
  return call.start([&] {
    c10d::Backend& backend = route(whole);
    if (all_same(counts)) return backend._allgather_base(out, in, options);
    std::vector<std::vector<at::Tensor>> outputs{cut(out, counts)};
    std::vector<at::Tensor> inputs{in};
    return backend.allgather(outputs, inputs, options);
  });
}

Work Communicator::start_all_gather(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes, bool async,
                                    const Where& where) const {
  Call call(group_, "all_gather", piece, settings_.timeout, where);
  const at::Tensor rows = dim_first(call, piece, dim);
  const std::int64_t total = sizes.empty() ? rows.size(0) * size() : c10::sum_integers(sizes);
  Sizes counts = checked_sizes(call, sizes, size(), total);
  const std::int64_t row = elements_per_row(rows);
  for (auto& count : counts) count *= row;
  const at::Tensor whole = with_rows(rows, total);
  give_back(call, whole, dim);
  return start_all_gather_into(call, whole, rows, counts, async);
}

at::Tensor Communicator::all_gather(const at::Tensor& piece, std::int64_t dim, Where where) const {
  return start_all_gather(piece, dim, {}, false, where).result();
}
at::Tensor Communicator::all_gather(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes, Where where) const {
  return start_all_gather(piece, dim, sizes, false, where).result();
}
Work Communicator::all_gather_async(const at::Tensor& piece, std::int64_t dim, Where where) const {
  return start_all_gather(piece, dim, {}, true, where);
}
Work Communicator::all_gather_async(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes, Where where) const {
  return start_all_gather(piece, dim, sizes, true, where);
}
Work Communicator::all_gather_into_async(at::Tensor whole, const at::Tensor& piece, const Sizes& counts,
                                         Where where) const {
  Call call(group_, "all_gather", whole, settings_.timeout, where);
  return start_all_gather_into(call, whole, piece, checked_sizes(call, counts, size(), whole.numel()), true);
}
void Communicator::all_gather_into(at::Tensor whole, const at::Tensor& piece, const Sizes& counts, Where where) const {
  Call call(group_, "all_gather", whole, settings_.timeout, where);
  start_all_gather_into(call, whole, piece, checked_sizes(call, counts, size(), whole.numel()), false).wait();
}

// ---- reduce_scatter -------------------------------------------------------------------------------------------------

Work Communicator::start_reduce_scatter_into(Call& call, const at::Tensor& piece, const at::Tensor& whole, ReduceOp op,
                                             const Sizes& counts, bool async) const {
  auto options = options_for<c10d::ReduceScatterOptions>(settings_.timeout, async);
  options.reduceOp = comm::to_c10d(op);
  check_op(call, whole, op);
  require_piece(call, whole, piece, counts[static_cast<std::size_t>(rank())]);
  at::Tensor out = flat(piece);
  at::Tensor in = flat(whole);
  call.keep(out).keep(in);
  return call.start([&] {
    c10d::Backend& backend = route(whole);
    if (all_same(counts)) return backend._reduce_scatter_base(out, in, options);
    std::vector<at::Tensor> outputs{out};
    std::vector<std::vector<at::Tensor>> inputs{cut(in, counts)};
    return backend.reduce_scatter(outputs, inputs, options);
  });
}

Work Communicator::start_reduce_scatter(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes,
                                        bool async, const Where& where) const {
  Call call(group_, "reduce_scatter", whole, settings_.timeout, where);
  const at::Tensor rows = dim_first(call, whole, dim);
  Sizes counts = checked_sizes(call, sizes, size(), rows.size(0));
  const at::Tensor piece = with_rows(rows, counts[static_cast<std::size_t>(rank())]);
  const std::int64_t row = elements_per_row(rows);
  for (auto& count : counts) count *= row;
  give_back(call, piece, dim);
  return start_reduce_scatter_into(call, piece, rows, op, counts, async);
}

at::Tensor Communicator::reduce_scatter(const at::Tensor& whole, ReduceOp op, std::int64_t dim, Where where) const {
  return start_reduce_scatter(whole, op, dim, {}, false, where).result();
}
at::Tensor Communicator::reduce_scatter(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes,
                                        Where where) const {
  return start_reduce_scatter(whole, op, dim, sizes, false, where).result();
}
Work Communicator::reduce_scatter_async(const at::Tensor& whole, ReduceOp op, std::int64_t dim, Where where) const {
  return start_reduce_scatter(whole, op, dim, {}, true, where);
}
Work Communicator::reduce_scatter_async(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes,
                                        Where where) const {
  return start_reduce_scatter(whole, op, dim, sizes, true, where);
}
Work Communicator::reduce_scatter_into_async(at::Tensor piece, const at::Tensor& whole, ReduceOp op,
                                             const Sizes& counts, Where where) const {
  Call call(group_, "reduce_scatter", whole, settings_.timeout, where);
  return start_reduce_scatter_into(call, piece, whole, op, checked_sizes(call, counts, size(), whole.numel()), true);
}
void Communicator::reduce_scatter_into(at::Tensor piece, const at::Tensor& whole, ReduceOp op, const Sizes& counts,
                                       Where where) const {
  Call call(group_, "reduce_scatter", whole, settings_.timeout, where);
  start_reduce_scatter_into(call, piece, whole, op, checked_sizes(call, counts, size(), whole.numel()), false).wait();
}

// ---- barrier --------------------------------------------------------------------------------------------------------

Work Communicator::start_barrier(bool async, const Where& where) const {
  Call call(group_, "barrier", at::Tensor(), settings_.timeout, where);
  return call.start([&] {
    return group_->backend(settings_.strategy, 0).barrier(options_for<c10d::BarrierOptions>(settings_.timeout, async));
  });
}
void Communicator::barrier(Where where) const { start_barrier(false, where).wait(); }
Work Communicator::barrier_async(Where where) const { return start_barrier(true, where); }

c10d::Backend& Communicator::route(const at::Tensor& tensor) const {
  return group_->backend(settings_.strategy, static_cast<std::int64_t>(tensor.nbytes()));
}

}  // namespace tessera
