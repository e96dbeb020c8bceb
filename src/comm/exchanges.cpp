// The operations of Communicator in which every byte has one sender and one receiver.
#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <utility>

#include "comm/call.h"
#include "comm/call_shapes.h"
#include "comm/engine/engine_backend.h"
#include "comm/engine/transfer_work.h"

namespace tessera {

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
    const at::Tensor whole = with_rows(rows, total);
    give_back(call, whole, dim);
    outputs.push_back(cut(whole, extents));
  }
  std::vector<at::Tensor> inputs{rows};
  auto options = options_for<c10d::GatherOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.keep(rows).start([&] { return group_->connection().backend->gather(outputs, inputs, options); });
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
  // Only the root's values matter: the others' tensor tells the shape and is not copied.
  const at::Tensor rows = is_root ? dim_first(call, whole, dim) : whole.movedim(first, 0);
  if (dim < 0) dim += whole.dim();
  const Sizes extents = checked_sizes(call, sizes, size(), rows.size(0));
  const at::Tensor piece = with_rows(rows, extents[static_cast<std::size_t>(rank())]);
  give_back(call, piece, dim);
  std::vector<at::Tensor> outputs{piece};
  std::vector<std::vector<at::Tensor>> inputs;
  if (is_root) inputs.push_back(cut(rows, extents));
  auto options = options_for<c10d::ScatterOptions>(settings_.timeout, async);
  options.rootRank = root;
  return call.keep(rows).keep(piece).start(
      [&] { return group_->connection().backend->scatter(outputs, inputs, options); });
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
  at::Tensor rows = dim_first(call, tensor, dim);
  Sizes out = checked_sizes(call, send_sizes, size(), rows.size(0));
  const std::int64_t arriving = recv_sizes.empty() ? rows.size(0) : c10::sum_integers(recv_sizes);
  Sizes in = checked_sizes(call, recv_sizes, size(), arriving);
  at::Tensor received = with_rows(rows, arriving);
  give_back(call, received, dim);
  return call.keep(rows).keep(received).start([&] {
    return group_->connection().backend->alltoall_base(received, rows, in, out,
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
  Call call(group_, "send", tensor, settings_.timeout, where);
  check_rank(call, to, size(), "the receiver");
  call.require(to != rank(), "a rank does not send to itself; copy the tensor");
  const at::Tensor data = tensor.contiguous();
  call.keep(data);
  const Connection& connection = group_->connection();
  if (!connection.transport) {
    std::vector<at::Tensor> tensors{data};
    return call.start([&] { return connection.backend->send(tensors, to, kUserChannel); });
  }
  return call.start([&] {
    auto transfer = connection.transport->send(buffer_of(data).bytes(), to, kUserChannel);
    if (async) connection.transport->progress_in_background();
    return transfer;
  });
}

Work Communicator::start_recv(const at::Tensor& tensor, int from, bool async, const Where& where) const {
  Call call(group_, "recv", tensor, settings_.timeout, where);
  check_rank(call, from, size(), "the sender");
  call.require(from != rank(), "a rank does not receive from itself; copy the tensor");
  const at::Tensor data = in_place(call, tensor);
  call.keep(data).result(tensor);
  const Connection& connection = group_->connection();
  if (!connection.transport) {
    std::vector<at::Tensor> tensors{data};
    return call.start([&] { return connection.backend->recv(tensors, from, kUserChannel); });
  }
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
  return start_recv(at::empty(shape, options), from, false, where).result();
}

}  // namespace tessera
