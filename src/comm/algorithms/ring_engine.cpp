#include "comm/algorithms/ring_engine.h"

#include <algorithm>
#include <vector>

namespace tessera::comm {
namespace {

constexpr std::int64_t kSegmentsAtOnce = 4;

std::vector<Buffer> segments_of(Buffer data) {
  const std::int64_t length = std::max<std::int64_t>(1, kSegmentBytes / data.element_bytes());
  std::vector<Buffer> segments;
  for (std::int64_t begin = 0; begin < data.count; begin += length) {
    segments.push_back(data.slice(begin, std::min(length, data.count - begin)));
  }
  return segments;
}

}  // namespace

void RingEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const Counts counts = even_counts(data.count, size());
  const auto offsets = offsets_of(counts);
  const Buffer mine = data.slice(offsets[index()], counts[index()]);
  reduce_scatter(mine, data, counts, op, deadline);
  all_gather(data, mine, counts, deadline);
}

void RingEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) {
  const auto offsets = offsets_of(counts);
  const auto block = [&](int step) {
    const auto b = static_cast<std::size_t>(block_of_step(step));
    return whole.slice(offsets[b], counts[b]);
  };
  copy(block(0), piece);
  for (int step = 0; step + 1 < size(); ++step) {
    messages_.exchange(block(step), messages_.neighbour(1), block(step + 1), messages_.neighbour(-1), deadline);
  }
}

void RingEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) {
  // Block b starts at rank b + 1 and takes in one contribution a step until it arrives at rank b. A few segments travel
  // at once, so that one is added up while the next arrives and the sums on their way stay in cache.
  const auto offsets = offsets_of(counts);
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  const std::int64_t extent = std::min(longest, kSegmentsAtOnce * kSegmentBytes / whole.element_bytes());
  const Scratch first(whole, extent);
  const Scratch second(whole, extent);
  for (std::int64_t begin = 0; begin < longest; begin += extent) {
    const auto own = [&](int step) {
      const auto b = static_cast<std::size_t>(block_of_step(step));
      return whole.slice(offsets[b] + begin, std::clamp<std::int64_t>(counts[b] - begin, 0, extent));
    };
    Buffer going = own(1);
    Buffer coming = first.buffer();
    for (int step = 1; step < size(); ++step) {
      const Buffer contribution = own(step + 1);
      const Buffer arriving = coming.slice(0, contribution.count);
      pass_on(going, arriving, contribution, op, deadline);
      going = arriving;
      coming = coming.data == first.buffer().data ? second.buffer() : first.buffer();
    }
    copy(piece.slice(begin, going.count), going);
  }
  finish_average(piece, op, size());
}

void RingEngine::pass_on(Buffer going, Buffer arriving, Buffer contribution, ReduceOp op, Deadline deadline) {
  const auto incoming = segments_of(arriving);
  const auto contributions = segments_of(contribution);
  std::vector<std::unique_ptr<Transfer>> receives;
  std::vector<std::unique_ptr<Transfer>> sends;
  for (const Buffer& segment : incoming) receives.push_back(messages_.start_recv(segment, messages_.neighbour(-1)));
  for (const Buffer& segment : segments_of(going)) {
    sends.push_back(messages_.start_send(segment, messages_.neighbour(1)));
  }
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    receives[i]->wait(deadline.at());
    accumulate(incoming[i], contributions[i], op);
  }
  for (const auto& send : sends) send->wait(deadline.at());
}

void RingEngine::broadcast(Buffer data, int root, Deadline deadline) {
  const bool first = rank() == root;
  const bool last = messages_.neighbour(1) == root;
  std::vector<std::unique_ptr<Transfer>> sends;
  for (const Buffer& segment : segments_of(data)) {
    if (!first) messages_.recv(segment, messages_.neighbour(-1), deadline);
    if (!last) sends.push_back(messages_.start_send(segment, messages_.neighbour(1)));
  }
  for (const auto& send : sends) send->wait(deadline.at());
}

void RingEngine::reduce(Buffer data, int root, ReduceOp op, Deadline deadline) {
  if (size() == 1) return;
  // The chain begins at the rank after the root and ends at the root.
  const bool first = messages_.neighbour(-1) == root;
  const bool last = rank() == root;
  Scratch sums(data, first ? 0 : data.count);
  std::vector<std::unique_ptr<Transfer>> sends;
  std::int64_t begin = 0;
  for (const Buffer& segment : segments_of(data)) {
    const Buffer sum = first ? segment : sums.buffer().slice(begin, segment.count);
    begin += segment.count;
    if (!first) {
      messages_.recv(sum, messages_.neighbour(-1), deadline);
      accumulate(sum, segment, op);
    }
    if (last) {
      copy(segment, sum);
    } else {
      sends.push_back(messages_.start_send(sum, messages_.neighbour(1)));
    }
  }
  for (const auto& send : sends) send->wait(deadline.at());
  if (last) finish_average(data, op, size());
}

}  // namespace tessera::comm
