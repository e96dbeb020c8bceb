#include "comm/algorithms/ring_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::comm {
namespace {

// Long chains work on several segments at once; this is one of them.
constexpr std::int64_t kSegmentBytes = 512 << 10;

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
  // Block b starts at rank b + 1 and gathers one contribution a step until it arrives at rank b.
  const auto offsets = offsets_of(counts);
  const auto own = [&](int step) {
    const auto b = static_cast<std::size_t>(block_of_step(step));
    return whole.slice(offsets[b], counts[b]);
  };
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  Scratch first(whole, longest);
  Scratch second(whole, longest);
  Buffer coming = first.buffer();
  Buffer going = second.buffer();
  copy(going, own(1));
  for (int step = 1; step < size(); ++step) {
    const Buffer contribution = own(step + 1);
    messages_.exchange(going.slice(0, own(step).count), messages_.neighbour(1), coming.slice(0, contribution.count),
                       messages_.neighbour(-1), deadline);
    accumulate(coming.slice(0, contribution.count), contribution, op);
    std::swap(coming, going);
  }
  copy(piece, going.slice(0, piece.count));
  finish_average(piece, op, size());
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
  // The chain begins behind the root and ends at it.
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
