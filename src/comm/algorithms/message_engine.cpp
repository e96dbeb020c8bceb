#include "comm/algorithms/message_engine.h"

#include <array>
#include <cstring>
#include <vector>

#include "comm/engine/reduce_kernels.h"

namespace tessera::comm {

std::unique_ptr<Transfer> MessagePassing::start_send(Buffer data, int to) {
  ++num_messages_;
  num_bytes_ += static_cast<std::uint64_t>(data.num_bytes());
  return transport_.send(data.bytes(), to, channel_);
}

std::unique_ptr<Transfer> MessagePassing::start_recv(Buffer data, int from) {
  return transport_.recv(data.bytes(), from, channel_);
}

void MessagePassing::send(Buffer data, int to, Deadline deadline) {
  if (data.count > 0) start_send(data, to)->wait(deadline.at());
}

void MessagePassing::recv(Buffer data, int from, Deadline deadline) {
  if (data.count > 0) start_recv(data, from)->wait(deadline.at());
}

void MessagePassing::exchange(Buffer out, int to, Buffer in, int from, Deadline deadline) {
  const auto receiving = in.count > 0 ? start_recv(in, from) : nullptr;
  const auto sending = out.count > 0 ? start_send(out, to) : nullptr;
  if (receiving) receiving->wait(deadline.at());
  if (sending) sending->wait(deadline.at());
}

void accumulate(Buffer target, Buffer other, ReduceOp op) {
  std::array<std::byte*, 1> destination{target.data};
  std::array<const std::byte*, 2> sources{target.data, other.data};
  reduce_into(destination, sources, target.count, target.dtype, op == ReduceOp::kAvg ? ReduceOp::kSum : op, 1);
}

void copy(Buffer to, Buffer from) {
  if (from.count > 0 && to.data != from.data) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.num_bytes()));
  }
}

void finish_average(Buffer data, ReduceOp op, int size) {
  if (op == ReduceOp::kAvg) divide(data.data, data.count, data.dtype, size);
}

void MessageEngine::gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) {
  if (rank() != root) {
    messages_.send(piece, root, deadline);
    return;
  }
  copy(whole.slice(offsets_of(counts)[index()], piece.count), piece);
  with_each_other(whole, counts, deadline, [&](Buffer place, int r) { return messages_.start_recv(place, r); });
}

void MessageEngine::scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) {
  if (rank() != root) {
    messages_.recv(piece, root, deadline);
    return;
  }
  copy(piece, whole.slice(offsets_of(counts)[index()], piece.count));
  with_each_other(whole, counts, deadline, [&](Buffer place, int r) { return messages_.start_send(place, r); });
}

void MessageEngine::with_each_other(Buffer whole, const Counts& counts, Deadline deadline, const Start& start) {
  const auto offsets = offsets_of(counts);
  std::vector<std::unique_ptr<Transfer>> pending;
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r != rank() && counts[i] > 0) pending.push_back(start(whole.slice(offsets[i], counts[i]), r));
  }
  for (const auto& transfer : pending) transfer->wait(deadline.at());
}

void MessageEngine::all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                               Deadline deadline) {
  const auto recv_offsets = offsets_of(recv_counts);
  const auto send_offsets = offsets_of(send_counts);
  copy(received.slice(recv_offsets[index()], recv_counts[index()]),
       sent.slice(send_offsets[index()], send_counts[index()]));
  // In round k everyone sends k ranks ahead, so that no receiver is flooded.
  for (int step = 1; step < size(); ++step) {
    const auto to = static_cast<std::size_t>(messages_.neighbour(step));
    const auto from = static_cast<std::size_t>(messages_.neighbour(-step));
    messages_.exchange(sent.slice(send_offsets[to], send_counts[to]), static_cast<int>(to),
                       received.slice(recv_offsets[from], recv_counts[from]), static_cast<int>(from), deadline);
  }
}

void MessageEngine::barrier(Deadline deadline) {
  std::byte out{0};
  std::byte in{0};
  for (int step = 1; step < size(); step *= 2) {
    messages_.exchange({&out, 1, c10::ScalarType::Byte}, messages_.neighbour(step), {&in, 1, c10::ScalarType::Byte},
                       messages_.neighbour(-step), deadline);
  }
}

}  // namespace tessera::comm
