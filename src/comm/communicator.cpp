#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "comm/algorithms/tree_engine.h"
#include "comm/call.h"
#include "comm/engine/engine_backend.h"
#include "comm/group.h"

namespace tessera {

Communicator::Communicator(std::shared_ptr<Group> group)
    : Communicator(group, Settings{group->world().timeout, group->world().strategy}) {}

Communicator::Communicator(std::shared_ptr<Group> group, Settings settings)
    : group_(std::move(group)), settings_(settings) {}

int Communicator::rank() const { return group_->rank(); }
int Communicator::size() const { return group_->size(); }
int Communicator::world_rank() const { return group_->world().rank; }
const std::string& Communicator::name() const { return group_->name(); }
std::string Communicator::backend() const { return group_->connection().backend->getBackendName(); }
std::chrono::milliseconds Communicator::timeout() const { return settings_.timeout; }
CommunicationStrategy Communicator::strategy() const { return settings_.strategy; }

int Communicator::world_rank_of(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    throw ConfigError("group " + name() + " has ranks 0 to " + std::to_string(size() - 1) + ", not " +
                      std::to_string(group_rank));
  }
  return group_->ranks()[static_cast<std::size_t>(group_rank)];
}

Communicator Communicator::with_timeout(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) throw ConfigError("a timeout must be above zero");
  return {group_, Settings{timeout, settings_.strategy}};
}

Communicator Communicator::with_strategy(CommunicationStrategy strategy) const {
  return {group_, Settings{settings_.timeout, strategy}};
}

Communicator Communicator::split(const std::vector<int>& ranks, const std::string& name) const {
  if (ranks.empty()) throw ConfigError("a subgroup of " + this->name() + " needs at least one rank");
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw ConfigError("a subgroup of " + this->name() + " names a rank twice");
  }
  std::vector<int> world_ranks;
  world_ranks.reserve(ranks.size());
  for (const int rank : ranks) world_ranks.push_back(world_rank_of(rank));
  std::string child = group_->child_name(world_ranks, name);
  return {std::make_shared<Group>(group_->shared_world(), std::move(child), std::move(world_ranks)), settings_};
}

Communicator Communicator::split_by(const std::function<int(int)>& color_of, const std::string& name) const {
  const int mine = color_of(rank());
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (color_of(r) == mine) ranks.push_back(r);
  }
  return split(ranks, name);
}

at::Tensor Communicator::empty(at::IntArrayRef shape, const at::TensorOptions& options) const {
  const auto memory = options.device().is_cpu() ? allocator() : nullptr;
  if (!memory) return at::empty(shape, options);
  return comm::tensor_from(memory.get(), shape, c10::typeMetaToScalarType(options.dtype()));
}

std::shared_ptr<c10::Allocator> Communicator::allocator() const {
  c10d::Backend& backend = *group_->connection().backend;
  return backend.supportsTensorAlloc(-1) ? backend.getMemAllocator() : nullptr;
}

bool Communicator::is_zero_copy(const at::Tensor& tensor) const {
  return tensor.device().is_cpu() && tensor.is_contiguous() &&
         group_->connection().is_zero_copy(tensor.const_data_ptr(), tensor.nbytes());
}

bool Communicator::shares_memory() const { return group_->connection().host_group != nullptr; }

std::vector<CallRecord> Communicator::recent_calls() const { return group_->world().recorder->recent(); }

c10::intrusive_ptr<c10d::ProcessGroup> Communicator::process_group(const at::Device& device) const {
  return group_->process_group(device);
}

using namespace comm;  // NOLINT: the helpers of this module

namespace {

/// A view costs a microsecond or two, and most tensors here are flat already.
at::Tensor flat(const at::Tensor& tensor) { return tensor.dim() == 1 ? tensor : tensor.view({-1}); }

/// In the order of sum_as_tree(), into the first one.
at::Tensor add_as_tree(const std::vector<at::Tensor>& tensors) {
  for (std::size_t stride = 1; stride < tensors.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < tensors.size(); i += 2 * stride) {
      at::Tensor(tensors[i]).add_(tensors[i + stride]);
    }
  }
  return tensors.front();
}

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
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  if (adds && settings_.strategy == CommunicationStrategy::kTree && !tensor.device().is_cpu()) {
    return add_on_devices(call, tensor, op, async);
  }
  std::vector<at::Tensor> tensors{call.lend(in_place(call, tensor))};
  auto options = options_for<c10d::AllreduceOptions>(settings_.timeout, async);
  options.reduceOp = comm::to_c10d(op);
  return call.start([&] { return route(tensor).allreduce(tensors, options); });
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
  std::vector<at::Tensor> tensors{call.lend(in_place(call, tensor))};
  auto options = options_for<c10d::BroadcastOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.start([&] { return route(tensor).broadcast(tensors, options); });
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
  std::vector<at::Tensor> tensors{call.lend(rank() == root ? in_place(call, tensor) : tensor.contiguous())};
  auto options = options_for<c10d::ReduceOptions>(settings_.timeout, async);
  options.rootRank = root;
  options.reduceOp = comm::to_c10d(op);
  return call.start([&] { return route(tensor).reduce(tensors, options); });
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
  }
  if (!copies.front().device().is_cpu()) {
    const at::Tensor sum = add_as_tree(copies);
    call.result(sum);
    return add_on_devices(call, sum, ReduceOp::kSum, false).result();
  }
  for (const at::Tensor& copy : copies) buffers.push_back(comm::buffer_of(copy));
  comm::sum_as_tree(buffers);
  std::vector<at::Tensor> tensors{copies.front()};
  const auto options = options_for<c10d::AllreduceOptions>(settings_.timeout, false);
  return call.result(tensors.front())
      .start([&] { return group_->backend(CommunicationStrategy::kTree, 0).allreduce(tensors, options); })
      .result();
}

/// Backends of devices add in an order of their own. So each rank gets what every rank has added up, and adds that.
Work Communicator::add_on_devices(Call& call, const at::Tensor& sum, ReduceOp op, bool async) const {
  const at::Tensor sums = at::empty({size() * sum.numel()}, sum.options());
  at::Tensor lent_sums = call.lend(sums);
  at::Tensor lent = call.lend(flat(sum.contiguous()));
  call.then([sums, sum, op, count = size()] {
    const at::NoGradGuard guard;
    sum.copy_(add_as_tree(sums.view({count, -1}).unbind()).view(sum.sizes()));
    if (op == ReduceOp::kAvg) at::Tensor(sum).div_(count);
  });
  const auto options = options_for<c10d::AllgatherOptions>(settings_.timeout, async);
  return call.start([&] { return route(sum)._allgather_base(lent_sums, lent, options); });
}

// ---- all_gather -----------------------------------------------------------------------------------------------------

Work Communicator::start_all_gather_into(Call& call, const at::Tensor& whole, const at::Tensor& piece,
                                         const Sizes& counts, bool async) const {
  const auto options = options_for<c10d::AllgatherOptions>(settings_.timeout, async);
  require_piece(call, whole, piece, counts[static_cast<std::size_t>(rank())]);
  at::Tensor out = call.lend(flat(whole));
  at::Tensor in = call.lend(flat(piece));
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
  const at::Tensor whole = with_rows(*group_, rows, total);
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
  at::Tensor out = call.lend(flat(piece));
  at::Tensor in = call.lend(flat(whole));
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
  const at::Tensor piece = with_rows(*group_, rows, counts[static_cast<std::size_t>(rank())]);
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
  // Algorithms of ours are of messages between CPUs; a device's backend has its own.
  if (!tensor.device().is_cpu()) return group_->device_backend(tensor.device());
  return group_->backend(settings_.strategy, static_cast<std::int64_t>(tensor.nbytes()));
}

c10d::Backend& Communicator::route_plainly(const at::Tensor& tensor) const {
  return tensor.device().is_cpu() ? *group_->connection().backend : group_->device_backend(tensor.device());
}

using namespace comm;  // NOLINT: the helpers of this module

// ---- gather and scatter ---------------------------------------------------------------------------------------------

Work Communicator::start_gather(const at::Tensor& piece, int root, std::int64_t dim, const Sizes& sizes, bool async,
                                const Where& where) const {
  Call call(group_, "gather", piece, settings_.timeout, where);
  check_rank(call, root, size(), "root");
  const at::Tensor rows = dim_first(call, piece, dim);
  const std::int64_t total = sizes.empty() ? rows.size(0) * size() : c10::sum_integers(sizes);
  const Sizes extents = checked_sizes(call, sizes, size(), total);
  const std::int64_t own = extents[static_cast<std::size_t>(rank())];
  if (rows.size(0) != own) {
    call.refuse("this rank's piece has " + std::to_string(rows.size(0)) + " along that dimension, not the " +
                std::to_string(own) + " that `sizes` says");
  }
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank() == root) {
    const at::Tensor whole = with_rows(*group_, rows, total);
    give_back(call, whole, dim);
    outputs.push_back(call.lend(cut(whole, extents)));
  }
  std::vector<at::Tensor> inputs{call.lend(rows)};
  auto options = options_for<c10d::GatherOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.start([&] { return route_plainly(rows).gather(outputs, inputs, options); });
}

at::Tensor Communicator::gather(const at::Tensor& piece, int root, std::int64_t dim, const Sizes& sizes,
                                Where where) const {
  Work work = start_gather(piece, root, dim, sizes, false, where);
  if (rank() == root) return work.result();
  work.wait();
  return {};
}
Work Communicator::gather_async(const at::Tensor& piece, int root, std::int64_t dim, const Sizes& sizes,
                                Where where) const {
  return start_gather(piece, root, dim, sizes, true, where);
}

Work Communicator::start_scatter(const at::Tensor& whole, int root, std::int64_t dim, const Sizes& sizes, bool async,
                                 const Where& where) const {
  Call call(group_, "scatter", whole, settings_.timeout, where);
  check_rank(call, root, size(), "root");
  std::int64_t first = dim;
  const bool is_root = rank() == root;
  // Only the root's values matter. The tensors of the others only give the shape and are not copied.
  const at::Tensor rows = is_root ? dim_first(call, whole, dim) : whole.movedim(first, 0);
  if (dim < 0) dim += whole.dim();
  const Sizes extents = checked_sizes(call, sizes, size(), rows.size(0));
  const at::Tensor piece = with_rows(*group_, rows, extents[static_cast<std::size_t>(rank())]);
  give_back(call, piece, dim);
  std::vector<at::Tensor> outputs{call.lend(piece)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (is_root) inputs.push_back(call.lend(cut(rows, extents)));
  auto options = options_for<c10d::ScatterOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.start([&] { return route_plainly(piece).scatter(outputs, inputs, options); });
}

at::Tensor Communicator::scatter(const at::Tensor& whole, int root, std::int64_t dim, const Sizes& sizes,
                                 Where where) const {
  return start_scatter(whole, root, dim, sizes, false, where).result();
}
Work Communicator::scatter_async(const at::Tensor& whole, int root, std::int64_t dim, const Sizes& sizes,
                                 Where where) const {
  return start_scatter(whole, root, dim, sizes, true, where);
}

// ---- all_to_all -----------------------------------------------------------------------------------------------------

Work Communicator::start_all_to_all(const at::Tensor& tensor, std::int64_t dim, const Sizes& send_sizes,
                                    const Sizes& recv_sizes, bool async, const Where& where) const {
  Call call(group_, "all_to_all", tensor, settings_.timeout, where);
  call.require(send_sizes.empty() == recv_sizes.empty(), "give both the sizes sent and the sizes received, or neither");
  const at::Tensor rows = dim_first(call, tensor, dim);
  Sizes out = checked_sizes(call, send_sizes, size(), rows.size(0));
  const std::int64_t arriving = recv_sizes.empty() ? rows.size(0) : c10::sum_integers(recv_sizes);
  Sizes in = checked_sizes(call, recv_sizes, size(), arriving);
  const at::Tensor received = with_rows(*group_, rows, arriving);
  give_back(call, received, dim);
  at::Tensor lent_rows = call.lend(rows);
  at::Tensor lent = call.lend(received);
  return call.start([&] {
    return route_plainly(rows).alltoall_base(lent, lent_rows, in, out,
                                             options_for<c10d::AllToAllOptions>(settings_.timeout, async));
  });
}

at::Tensor Communicator::all_to_all(const at::Tensor& tensor, std::int64_t dim, const Sizes& send_sizes,
                                    const Sizes& recv_sizes, Where where) const {
  return start_all_to_all(tensor, dim, send_sizes, recv_sizes, false, where).result();
}
Work Communicator::all_to_all_async(const at::Tensor& tensor, std::int64_t dim, const Sizes& send_sizes,
                                    const Sizes& recv_sizes, Where where) const {
  return start_all_to_all(tensor, dim, send_sizes, recv_sizes, true, where);
}

// ---- send and recv --------------------------------------------------------------------------------------------------

Work Communicator::start_send(const at::Tensor& tensor, int to, bool async, const Where& where) const {
  Call call(group_, "send", tensor, settings_.timeout, where, to);
  check_rank(call, to, size(), "the receiver");
  call.require(to != rank(), "a rank does not send to itself; copy the tensor");
  const at::Tensor data = tensor.contiguous();
  std::vector<at::Tensor> tensors{call.lend(data)};
  if (!data.device().is_cpu()) {
    return call.start([&] { return group_->device_backend(data.device()).send(tensors, to, kUserChannel); });
  }
  const Connection& connection = group_->connection();
  return call.start([&] {
    auto transfer = connection.transport->send(buffer_of(data).bytes(), to, kUserChannel);
    if (async) connection.transport->progress_in_background();
    return transfer;
  });
}

Work Communicator::start_recv(const at::Tensor& tensor, int from, bool async, const Where& where) const {
  Call call(group_, "recv", tensor, settings_.timeout, where, from);
  check_rank(call, from, size(), "the sender");
  call.require(from != rank(), "a rank does not receive from itself; copy the tensor");
  const at::Tensor data = in_place(call, tensor);
  std::vector<at::Tensor> tensors{call.lend(data)};
  call.result(tensor);
  if (!data.device().is_cpu()) {
    return call.start([&] { return group_->device_backend(data.device()).recv(tensors, from, kUserChannel); });
  }
  const Connection& connection = group_->connection();
  return call.start([&] {
    auto transfer = connection.transport->recv(buffer_of(data).bytes(), from, kUserChannel);
    if (async) connection.transport->progress_in_background();
    return transfer;
  });
}

void Communicator::send(const at::Tensor& tensor, int to, Where where) const {
  start_send(tensor, to, false, where).wait();
}
Work Communicator::send_async(const at::Tensor& tensor, int to, Where where) const {
  return start_send(tensor, to, true, where);
}
void Communicator::recv(at::Tensor tensor, int from, Where where) const {
  start_recv(tensor, from, false, where).wait();
}
Work Communicator::recv_async(at::Tensor tensor, int from, Where where) const {
  return start_recv(tensor, from, true, where);
}
at::Tensor Communicator::recv(at::IntArrayRef shape, const at::TensorOptions& options, int from, Where where) const {
  return start_recv(memory_for_result(*group_, shape, options), from, false, where).result();
}

}  // namespace tessera
