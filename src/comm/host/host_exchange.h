#pragma once

#include <tessera/comm/reduce_op.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/buffer.h"
#include "comm/engine/deadline.h"
#include "comm/host/host_group.h"

namespace tessera::comm {

enum class HostOperation : std::uint32_t {
  kNone,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
};

/// In `HostCall::expected`: this rank reads nothing of that one.
constexpr std::int64_t kNotRead = -1;

/// What identifies a collective: all ranks must post the same.
struct HostCall {
  HostOperation operation;
  c10::ScalarType dtype;
  std::int64_t count;
  Deadline deadline;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  /// Elements that this rank reads of each rank's block for it; empty where `count` says all there is to agree on.
  Counts expected = {};
};

/// What this rank lets the others read: block b is elements [offsets[b], offsets[b + 1]) of `data`. There is one block,
/// or one for each rank.
struct Offer {
  Buffer data;
  std::vector<std::int64_t> offsets;

  static Offer one_block(Buffer data) { return {data, {0, data.count}}; }
  static Offer nothing(c10::ScalarType dtype) { return {{nullptr, 0, dtype}, {0, 0}}; }
};

/// How ranks on one host show each other memory: posts, a barrier, and staging for what peers cannot reach.
class HostExchange {
 public:
  /// Elements [begin, begin + length) of every rank's blocks.
  class Window {
   public:
    Window(const HostExchange& exchange, const Offer& offer, std::int64_t begin, std::int64_t length)
        : exchange_(exchange), offer_(offer), begin_(begin), length_(length) {}

    std::int64_t begin() const { return begin_; }
    /// How many elements of a block of `count` lie in this window.
    std::int64_t length_of(std::int64_t count) const;
    /// Where element `begin` of block `b` of `rank` can be read now.
    const std::byte* block(int rank, std::size_t b) const;

   private:
    const HostExchange& exchange_;
    const Offer& offer_;
    std::int64_t begin_;
    std::int64_t length_;
  };
  using Consume = std::function<void(const Window&)>;

  explicit HostExchange(std::shared_ptr<HostGroup> group) : group_(std::move(group)) {}

  const HostGroup& group() const { return *group_; }

  /// Shows `offer` to the others and calls `consume` with theirs, one window after another. With `stage_all`, `consume`
  /// may write to the memory offered; otherwise only to parts of it that nobody reads.
  /// Blocks: until all ranks have offered, and until none reads the memory of this one any more.
  void run(const HostCall& call, const Offer& offer, bool stage_all, const Consume& consume);

  /// Where each rank's `data` can be read and written, when that holds for all ranks; else nothing. When there is
  /// something, the caller must end with `wait_for_all`.
  std::vector<std::byte*> reach_all(const HostCall& call, Buffer data);

  /// Combines `data` over the ranks through staging: in each window every rank reduces its part and shows the result,
  /// which the others copy while it is still in cache. `counts` are the ranks' parts of `data`.
  /// Requires: `reach_all` was called before, which checks the call.
  void reduce_staged(const HostCall& call, Buffer data, const Counts& counts);

  void wait_for_all(const HostCall& call);

 private:
  void post(const HostCall& call, const Offer& offer, bool stage_all);
  const Post& posted(int rank) const { return group_->control.post(post_parity_, rank); }
  void require_alive(const HostCall& call) const;
  void check_posts(const HostCall& call);
  std::string difference_of_calls() const;
  std::string difference_of_lengths() const;
  void stage(const Offer& offer, std::int64_t begin);

  std::shared_ptr<HostGroup> group_;
  unsigned post_parity_ = 0;
  unsigned stage_parity_ = 0;
  std::int64_t stride_bytes_ = 0;  ///< between the blocks in a staging area, in the present call
};

}  // namespace tessera::comm
