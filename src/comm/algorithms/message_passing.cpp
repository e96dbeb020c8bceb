#include "comm/algorithms/message_passing.h"

#include <array>
#include <cstring>

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

}  // namespace tessera::comm
