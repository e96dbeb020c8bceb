#include "comm/host/host_engine.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/engine/reduce_kernels.h"

namespace tessera::comm {
namespace {

// Up to here every rank reduces everything for itself: the work costs less than a second barrier.
constexpr std::int64_t kSmallBytes = 32 << 10;

// Pieces of a large reduction end on this boundary, so that no two ranks write to one cache line.
constexpr std::int64_t kChunkAlignBytes = 4096;

void copy(Buffer to, std::int64_t begin, const std::byte* from, std::int64_t count) {
  std::byte* target = to.data + begin * to.element_bytes();
  if (count > 0 && target != from) std::memcpy(target, from, static_cast<std::size_t>(count * to.element_bytes()));
}

Counts aligned_counts(const Buffer& data, int size) {
  const std::int64_t unit = kChunkAlignBytes / data.element_bytes();
  const std::int64_t share = ((data.count + size - 1) / size + unit - 1) / unit * unit;
  Counts counts;
  for (std::int64_t left = data.count, r = 0; r < size; ++r, left -= counts.back())
    counts.push_back(std::min(share, left));
  return counts;
}

}  // namespace

void HostEngine::reduce_window(const HostExchange::Window& window, std::size_t block, Buffer into, ReduceOp op) const {
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(window.block(r, block));
  std::byte* destination = into.data + window.begin() * into.element_bytes();
  reduce_into({&destination, 1}, sources, window.length_of(into.count), into.dtype, op, size());
}

void HostEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const HostCall call{HostOperation::kAllReduce, data.dtype, data.count, deadline, op};
  if (data.num_bytes() <= kSmallBytes) {
    exchange_.run(call, Offer::one_block(data), true,
                  [&](const HostExchange::Window& window) { reduce_window(window, 0, data, op); });
    return;
  }
  const Counts counts = aligned_counts(data, size());
  const auto offsets = offsets_of(counts);
  const auto me = static_cast<std::size_t>(rank());
  if (auto addresses = exchange_.reach_all(call, data); !addresses.empty()) {
    for (auto& address : addresses) address += offsets[me] * data.element_bytes();
    const std::vector<const std::byte*> sources(addresses.begin(), addresses.end());
    reduce_into(addresses, sources, counts[me], data.dtype, op, size());
    exchange_.wait_for_all(call);
    return;
  }
  exchange_.reduce_staged(call, data, counts);
}

void HostEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) {
  const auto offsets = offsets_of(counts);
  const HostCall call{HostOperation::kAllGather, whole.dtype, whole.count, deadline, ReduceOp::kSum, 0, counts};
  exchange_.run(call, Offer::one_block(piece), false, [&](const HostExchange::Window& window) {
    for (int r = 0; r < size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      copy(whole, offsets[index] + window.begin(), window.block(r, 0), window.length_of(counts[index]));
    }
  });
}

void HostEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) {
  const HostCall call{HostOperation::kReduceScatter,     whole.dtype, whole.count, deadline, op, 0,
                      Counts(counts.size(), piece.count)};
  exchange_.run(call, Offer{whole, offsets_of(counts)}, false, [&](const HostExchange::Window& window) {
    reduce_window(window, static_cast<std::size_t>(rank()), piece, op);
  });
}

void HostEngine::broadcast(Buffer data, int root, Deadline deadline) {
  const bool is_root = rank() == root;
  exchange_.run({HostOperation::kBroadcast, data.dtype, data.count, deadline, ReduceOp::kSum, root},
                is_root ? Offer::one_block(data) : Offer::nothing(data.dtype), false,
                [&](const HostExchange::Window& window) {
                  if (!is_root) copy(data, window.begin(), window.block(root, 0), window.length_of(data.count));
                });
}

void HostEngine::reduce(Buffer data, int root, ReduceOp op, Deadline deadline) {
  exchange_.run({HostOperation::kReduce, data.dtype, data.count, deadline, op, root}, Offer::one_block(data), false,
                [&](const HostExchange::Window& window) {
                  if (rank() == root) reduce_window(window, 0, data, op);
                });
}

void HostEngine::gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) {
  const auto offsets = offsets_of(counts);
  const HostCall call{HostOperation::kGather,
                      piece.dtype,
                      0,
                      deadline,
                      ReduceOp::kSum,
                      root,
                      rank() == root ? counts : Counts(static_cast<std::size_t>(size()), kNotRead)};
  exchange_.run(call, Offer::one_block(piece), false, [&](const HostExchange::Window& window) {
    for (int r = 0; rank() == root && r < size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      copy(whole, offsets[index] + window.begin(), window.block(r, 0), window.length_of(counts[index]));
    }
  });
}

void HostEngine::scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) {
  HostCall call{HostOperation::kScatter,
                piece.dtype,
                0,
                deadline,
                ReduceOp::kSum,
                root,
                Counts(static_cast<std::size_t>(size()), kNotRead)};
  call.expected[static_cast<std::size_t>(root)] = piece.count;
  exchange_.run(call, rank() == root ? Offer{whole, offsets_of(counts)} : Offer::nothing(piece.dtype), false,
                [&](const HostExchange::Window& window) {
                  copy(piece, window.begin(), window.block(root, static_cast<std::size_t>(rank())),
                       window.length_of(piece.count));
                });
}

void HostEngine::all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                            Deadline deadline) {
  const auto offsets = offsets_of(recv_counts);
  const HostCall call{HostOperation::kAllToAll, sent.dtype, 0, deadline, ReduceOp::kSum, 0, recv_counts};
  exchange_.run(call, Offer{sent, offsets_of(send_counts)}, false, [&](const HostExchange::Window& window) {
    for (int r = 0; r < size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      copy(received, offsets[index] + window.begin(), window.block(r, static_cast<std::size_t>(rank())),
           window.length_of(recv_counts[index]));
    }
  });
}

void HostEngine::barrier(Deadline deadline) {
  const HostCall call{HostOperation::kBarrier, c10::ScalarType::Byte, 0, deadline};
  exchange_.run(call, Offer::nothing(c10::ScalarType::Byte), true, [](const HostExchange::Window&) {});
}

}  // namespace tessera::comm
