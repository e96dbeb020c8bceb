#pragma once

#include <tessera/comm/communicator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/collective_engine.h"
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

/// In `HostCall::expected`: this rank reads nothing of the other rank.
constexpr std::int64_t kNotRead = -1;

/// What identifies a collective: all ranks must post the same.
struct HostCall {
  HostOperation operation;
  c10::ScalarType dtype;
  std::int64_t count;
  Deadline deadline;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  /// For each rank, how many elements of its block this rank reads; empty where only `count` must agree.
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

/// How ranks on one host read each other's memory: posts, a barrier, and staging for memory that peers cannot reach.
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
  /// may write to the memory offered; otherwise only to parts of it that no other rank reads.
  /// Blocks: until all ranks have offered, and until no rank reads this rank's offered memory any more.
  void run(const HostCall& call, const Offer& offer, bool stage_all, const Consume& consume);

  /// Where each rank's `data` can be read and written; empty unless this is possible for all ranks. If the result is
  /// not empty, the caller must call `wait_for_all` at the end.
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

/// Collectives among ranks that share memory: threads of one process, or processes with a common mapping. A tensor in
/// memory that peers reach is read, and for all_reduce written, where it is; any other goes through staging areas that
/// are small enough to stay in cache. Every element is reduced in rank order by one rank, so all get the same bits.
class HostEngine : public CollectiveEngine {
 public:
  explicit HostEngine(std::shared_ptr<HostGroup> group) : exchange_(std::move(group)) {}

  std::string name() const override { return exchange_.group().backend; }

  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;
  void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) override;
  void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) override;
  void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                  Deadline deadline) override;
  void barrier(Deadline deadline) override;

 private:
  int rank() const { return exchange_.group().rank; }
  int size() const { return exchange_.group().size; }
  void reduce_window(const HostExchange::Window& window, std::size_t block, Buffer into, ReduceOp op) const;

  HostExchange exchange_;
};

}  // namespace tessera::comm
