#include "comm/algorithms/tree_engine.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace tessera::comm {

void sum_as_tree(const std::vector<Buffer>& contributions) {
  for (std::size_t stride = 1; stride < contributions.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < contributions.size(); i += 2 * stride) {
      accumulate(contributions[i], contributions[i + stride], ReduceOp::kSum);
    }
  }
}

void TreeEngine::reduce_to_first(Buffer data, ReduceOp op, Deadline deadline) {
  // Levels of the tree work on different segments at the same time.
  const std::int64_t length = std::min(data.count, kSegmentBytes / data.element_bytes());
  const Scratch arrived(data, length);
  std::vector<std::unique_ptr<Transfer>> sends;
  for (std::int64_t begin = 0; begin < data.count; begin += length) {
    const Buffer segment = data.slice(begin, std::min(length, data.count - begin));
    for (int stride = 1; stride < size(); stride *= 2) {
      if ((rank() & stride) != 0) {
        sends.push_back(messages_.start_send(segment, rank() - stride));
        break;
      }
      if (rank() + stride >= size()) continue;
      const Buffer other = arrived.buffer().slice(0, segment.count);
      messages_.recv(other, rank() + stride, deadline);
      accumulate(segment, other, op);
    }
  }
  for (const auto& send : sends) send->wait(deadline.at());
}

void TreeEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  reduce_to_first(data, op, deadline);
  if (rank() == 0) finish_average(data, op, size());
  broadcast(data, 0, deadline);
}

void TreeEngine::reduce(Buffer data, int root, ReduceOp op, Deadline deadline) {
  // The tree ends at rank 0 for every root, so that the result does not depend on the root; one more message takes the
  // result to the root. The tensors of the other ranks must keep their values.
  Scratch sums(data, rank() == root ? 0 : data.count);
  const Buffer sum = rank() == root ? data : sums.buffer();
  copy(sum, data);
  reduce_to_first(sum, op, deadline);
  if (rank() == 0) finish_average(sum, op, size());
  if (root == 0) return;
  if (rank() == 0) messages_.send(sum, root, deadline);
  if (rank() == root) messages_.recv(data, 0, deadline);
}

void TreeEngine::broadcast(Buffer data, int root, Deadline deadline) {
  // Ranks are counted from the root here: the shape matters for sums only.
  const int place = messages_.neighbour(-root);
  const auto at = [&](int p) { return (p + root) % size(); };
  const int top = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size())));
  int stride = top;
  if (place != 0) {
    stride = place & -place;
    messages_.recv(data, at(place - stride), deadline);
  }
  for (stride /= 2; stride >= 1; stride /= 2) {
    if (place + stride < size()) messages_.send(data, at(place + stride), deadline);
  }
}

void TreeEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) {
  // A subtree holds a run of neighbouring ranks, so its pieces adjoin in `whole` and travel as one message.
  const auto offsets = offsets_of(counts);
  copy(whole.slice(offsets[index()], counts[index()]), piece);
  const auto run = [&](int begin, int stride) {
    const auto first = static_cast<std::size_t>(begin);
    const auto last = static_cast<std::size_t>(std::min(begin + stride, size()));
    return whole.slice(offsets[first], offsets[last] - offsets[first]);
  };
  for (int stride = 1; stride < size(); stride *= 2) {
    if ((rank() & stride) != 0) {
      messages_.send(run(rank(), stride), rank() - stride, deadline);
      break;
    }
    if (rank() + stride < size()) messages_.recv(run(rank() + stride, stride), rank() + stride, deadline);
  }
  broadcast(whole, 0, deadline);
}

void TreeEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) {
  Scratch sums(whole, whole.count);
  copy(sums.buffer(), whole);
  reduce_to_first(sums.buffer(), op, deadline);
  if (rank() == 0) finish_average(sums.buffer(), op, size());
  scatter(piece, sums.buffer(), counts, 0, deadline);
}

}  // namespace tessera::comm
