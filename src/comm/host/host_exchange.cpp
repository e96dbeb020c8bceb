#include "comm/host/host_exchange.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "comm/engine/reduce_kernels.h"

namespace tessera::comm {
namespace {

// Below this, copying to staging costs less than the second barrier that direct reading needs.
constexpr std::int64_t kDirectBytes = 32 << 10;

constexpr const char* kSameCalls =
    "; make the same calls, with the same types and sizes, in the same order on every rank";

const char* name_of(std::uint32_t operation) {
  constexpr std::array<const char*, 10> kNames = {"nothing", "all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                  "reduce",  "gather",     "scatter",    "all_to_all",     "barrier"};
  return operation < kNames.size() ? kNames[operation] : kNames[0];
}

std::string describe(const Post& post) {
  std::string text = name_of(post.operation);
  if (post.count > 0) {
    text += " of " + std::to_string(post.count) + " " + c10::toString(static_cast<c10::ScalarType>(post.dtype));
  }
  return text + " (op " + std::string(to_string(static_cast<ReduceOp>(post.reduce_op))) + ", root " +
         std::to_string(post.root) + ")";
}

bool same_call(const Post& a, const Post& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.count == b.count && a.reduce_op == b.reduce_op &&
         a.root == b.root;
}

std::int64_t longest_block(const Offer& offer) {
  std::int64_t longest = 0;
  for (std::size_t b = 0; b + 1 < offer.offsets.size(); ++b) {
    longest = std::max(longest, offer.offsets[b + 1] - offer.offsets[b]);
  }
  return longest;
}

}  // namespace

std::int64_t HostExchange::Window::length_of(std::int64_t count) const {
  return std::clamp<std::int64_t>(count - begin_, 0, length_);
}

const std::byte* HostExchange::Window::block(int rank, std::size_t b) const {
  const HostGroup& group = *exchange_.group_;
  const std::int64_t element = offer_.data.element_bytes();
  if (rank == group.rank) return offer_.data.data + (offer_.offsets[b] + begin_) * element;
  const Post& post = exchange_.posted(rank);
  if (post.direct == 0) {
    return group.control.staging(exchange_.stage_parity_, rank) +
           static_cast<std::int64_t>(b) * exchange_.stride_bytes_;
  }
  const std::int64_t offset = group.control.offsets(exchange_.post_parity_, rank)[b];
  return group.space.resolve(post.address) + (offset + begin_) * element;
}

// Note [Groups that gave up]
// A rank that gives up waiting has already been counted as arrived. If it called again, it could complete a barrier in
// place of a rank that never came, and read what that rank has not written. So no rank may use the group any more.
void HostExchange::require_alive(const HostCall& call) const {
  const std::uint32_t gave_up = group_->control.gave_up().load(std::memory_order_acquire);
  if (gave_up == 0) return;
  // Who calls later than others must hear of the loss too, and not of the rank that noticed it first.
  if (const std::string lost = group_->waiter.find_loss(); !lost.empty()) {
    throw CommError(std::string(name_of(static_cast<std::uint32_t>(call.operation))) + ": " + lost);
  }
  throw CommError(std::string(name_of(static_cast<std::uint32_t>(call.operation))) + ": rank " +
                  std::to_string(gave_up - 1) +
                  " of this group gave up waiting for the others in an earlier call, and since then the group is dead; "
                  "make a new one with split(), or start the job again");
}

void HostExchange::wait_for_all(const HostCall& call) {
  const ControlBlock& control = group_->control;
  const auto size = static_cast<std::uint32_t>(group_->size);
  require_alive(call);
  const std::uint32_t generation = control.generation().load(std::memory_order_acquire);
  if (control.arrived().fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    control.arrived().store(0, std::memory_order_relaxed);
    control.generation().store(generation + 1, std::memory_order_release);
    if (size > 1) futex_wake_all(control.generation());
    return;
  }
  const auto complete = [&] { return control.generation().load(std::memory_order_acquire) != generation; };
  try {
    group_->waiter.wait(control.generation(), complete, call.deadline, [&] {
      const std::uint32_t arrived = control.arrived().load(std::memory_order_relaxed);
      return std::string(name_of(static_cast<std::uint32_t>(call.operation))) + " waits for " +
             std::to_string(size - arrived) + " of " + std::to_string(size) + " ranks";
    });
  } catch (...) {
    std::uint32_t nobody = 0;
    control.gave_up().compare_exchange_strong(nobody, static_cast<std::uint32_t>(group_->rank) + 1);
    throw;
  }
}

void HostExchange::post(const HostCall& call, const Offer& offer, bool stage_all) {
  post_parity_ ^= 1U;
  Post& mine = group_->control.post(post_parity_, group_->rank);
  mine.operation = static_cast<std::uint32_t>(call.operation);
  mine.dtype = static_cast<std::int32_t>(call.dtype);
  mine.reduce_op = static_cast<std::int32_t>(call.op);
  mine.root = call.root;
  mine.count = call.count;
  mine.longest = longest_block(offer);
  std::optional<std::uint64_t> address;
  if (!stage_all && mine.longest * offer.data.element_bytes() > kDirectBytes) {
    address = group_->space.publish(offer.data.data, static_cast<std::size_t>(offer.data.num_bytes()));
  }
  mine.direct = address.has_value() ? 1 : 0;
  mine.address = address.value_or(0);
  mine.num_blocks = static_cast<std::int32_t>(offer.offsets.size() - 1);
  std::copy(offer.offsets.begin(), offer.offsets.end() - 1, group_->control.offsets(post_parity_, group_->rank));
  if (call.expected.empty()) return;
  std::int64_t* offered = group_->control.offered(post_parity_, group_->rank);
  for (std::size_t b = 0; b + 1 < offer.offsets.size(); ++b) offered[b] = offer.offsets[b + 1] - offer.offsets[b];
  std::copy(call.expected.begin(), call.expected.end(), group_->control.expected(post_parity_, group_->rank));
}

// Every rank compares all posts, not only those that concern it. All ranks must come to the same result, or some would
// wait for others that have thrown.
void HostExchange::check_posts(const HostCall& call) {
  std::string difference = difference_of_calls();
  if (difference.empty() && !call.expected.empty()) difference = difference_of_lengths();
  if (difference.empty()) return;
  // After different calls, the ranks may disagree on the next staging area. A caller may catch the exception and go on,
  // so all ranks start again from the same area.
  stage_parity_ = 0;
  throw ConfigError(difference + kSameCalls);
}

std::string HostExchange::difference_of_calls() const {
  const Post& mine = posted(group_->rank);
  for (int rank = 0; rank < group_->size; ++rank) {
    if (same_call(mine, posted(rank))) continue;
    return "rank " + std::to_string(group_->rank) + " calls " + describe(mine) + " where rank " + std::to_string(rank) +
           " calls " + describe(posted(rank));
  }
  return "";
}

std::string HostExchange::difference_of_lengths() const {
  const ControlBlock& control = group_->control;
  for (int from = 0; from < group_->size; ++from) {
    const std::int64_t* offered = control.offered(post_parity_, from);
    const bool one_for_each = posted(from).num_blocks > 1;
    for (int to = 0; to < group_->size; ++to) {
      const std::int64_t expected = control.expected(post_parity_, to)[from];
      const std::int64_t found = offered[one_for_each ? to : 0];
      if (expected == found || expected == kNotRead) continue;
      return "in " + std::string(name_of(posted(from).operation)) + ", rank " + std::to_string(to) + " expects " +
             std::to_string(expected) + " elements of rank " + std::to_string(from) + ", which has " +
             std::to_string(found) + " for it";
    }
  }
  return "";
}

void HostExchange::stage(const Offer& offer, std::int64_t begin) {
  const std::int64_t element = offer.data.element_bytes();
  const std::int64_t window = stride_bytes_ / element;
  std::byte* staging = group_->control.staging(stage_parity_, group_->rank);
  const bool one_for_each = offer.offsets.size() > 2;
  for (std::size_t b = 0; b + 1 < offer.offsets.size(); ++b) {
    if (one_for_each && static_cast<int>(b) == group_->rank) continue;  // no other rank reads it
    const std::int64_t count = offer.offsets[b + 1] - offer.offsets[b];
    const std::int64_t amount = std::clamp<std::int64_t>(count - begin, 0, window);
    if (amount == 0) continue;
    std::memcpy(staging + static_cast<std::int64_t>(b) * stride_bytes_,
                offer.data.data + (offer.offsets[b] + begin) * element, static_cast<std::size_t>(amount * element));
  }
}

void HostExchange::run(const HostCall& call, const Offer& offer, bool stage_all, const Consume& consume) {
  // All ranks must divide their staging areas alike, also those that offer nothing.
  const bool one_for_each = call.operation == HostOperation::kReduceScatter ||
                            call.operation == HostOperation::kScatter || call.operation == HostOperation::kAllToAll;
  const std::int64_t num_blocks = one_for_each ? group_->size : 1;
  stride_bytes_ = static_cast<std::int64_t>(ControlBlock::kStagingBytes) / num_blocks / 64 * 64;
  const std::int64_t window = stride_bytes_ / offer.data.element_bytes();

  post(call, offer, stage_all);
  const bool direct = posted(group_->rank).direct != 0;
  bool any_direct = false;
  std::int64_t longest = 0;
  std::int64_t longest_staged = 0;
  for (std::int64_t begin = 0; begin == 0 || begin < longest; begin += window) {
    stage_parity_ ^= 1U;
    if (!direct) stage(offer, begin);
    wait_for_all(call);
    if (begin == 0) {
      check_posts(call);
      for (int rank = 0; rank < group_->size; ++rank) {
        longest = std::max(longest, posted(rank).longest);
        if (posted(rank).direct == 0) longest_staged = std::max(longest_staged, posted(rank).longest);
        any_direct = any_direct || posted(rank).direct != 0;
      }
      if (longest_staged <= window) {
        consume(Window(*this, offer, 0, longest));
        break;
      }
    }
    consume(Window(*this, offer, begin, window));
  }
  if (any_direct) wait_for_all(call);
}

std::vector<std::byte*> HostExchange::reach_all(const HostCall& call, Buffer data) {
  post(call, Offer::one_block(data), false);
  wait_for_all(call);
  check_posts(call);
  std::vector<std::byte*> addresses;
  for (int rank = 0; rank < group_->size; ++rank) {
    if (posted(rank).direct == 0) return {};
    addresses.push_back(group_->space.resolve(posted(rank).address));
  }
  return addresses;
}

void HostExchange::reduce_staged(const HostCall& call, Buffer data, const Counts& counts) {
  const Offer offer{data, offsets_of(counts)};
  const std::int64_t element = data.element_bytes();
  const auto me = static_cast<std::size_t>(group_->rank);
  const auto part = [&](std::size_t r, std::int64_t begin, std::int64_t window) {
    return data.slice(offer.offsets[r] + begin, std::clamp<std::int64_t>(counts[r] - begin, 0, window));
  };
  stride_bytes_ = static_cast<std::int64_t>(ControlBlock::kStagingBytes) / group_->size / 64 * 64;
  const std::int64_t window = stride_bytes_ / element;
  // One staging area of each rank takes contributions, the other one results; see Note [Two of everything].
  const unsigned results = stage_parity_ ^ 1U;
  std::byte* my_result = group_->control.staging(results, group_->rank);
  for (std::int64_t begin = 0; begin < counts.front(); begin += window) {
    stage(offer, begin);
    wait_for_all(call);
    const Buffer mine = part(me, begin, window);
    std::vector<const std::byte*> sources;
    for (int r = 0; r < group_->size; ++r) {
      sources.push_back(r == group_->rank ? mine.data
                                          : group_->control.staging(stage_parity_, r) +
                                                static_cast<std::int64_t>(me) * stride_bytes_);
    }
    const std::array<std::byte*, 2> destinations{mine.data, my_result};
    reduce_into(destinations, sources, mine.count, data.dtype, call.op, group_->size);
    wait_for_all(call);
    for (int r = 0; r < group_->size; ++r) {
      const Buffer theirs = part(static_cast<std::size_t>(r), begin, window);
      if (r == group_->rank || theirs.count == 0) continue;
      std::memcpy(theirs.data, group_->control.staging(results, r), static_cast<std::size_t>(theirs.num_bytes()));
    }
  }
  // A slower rank may still copy from the results. run() flips the parity before it stages, so that the next call
  // writes into the area of the contributions.
  stage_parity_ ^= 1U;
}

namespace {

// Up to this size every rank reduces the whole buffer itself, which costs less than a second barrier.
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
