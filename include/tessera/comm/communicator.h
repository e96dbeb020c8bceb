#pragma once

#include <tessera/comm/strategy.h>
#include <tessera/flight/call_record.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A collective or transfer under way. Cheap to copy; copies refer to the same operation.
/// The tensors of the operation are kept alive until it is done; do not write them before `wait()` returns.
///
/// Of tensors on a device: a call runs behind what the current stream has when it is made, on a stream of its own, and
/// returns at once. `wait()` lets the current stream of the calling thread wait, not the host: what is launched on it
/// afterwards sees the result, and other streams need an event. A call that fails, or is not done in time, is reported
/// by the next one.
class Work {
 public:
  struct State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state);

  /// Blocks, for tensors of the CPU: until the operation is done. Then completes it (copies a result back into a
  /// strided tensor, say).
  /// Throws CommError naming the operation, the group, the rank and the line that started it.
  void wait();

  /// As `wait()`, and returns the tensor that the operation made. Throws ConfigError when it makes none.
  at::Tensor result();

  /// Whether `wait()` would return without blocking. Never blocks.
  bool is_completed() const;

 private:
  std::shared_ptr<State> state_;
};

/// How the contributions of the ranks are combined. `kAvg` is refused for integer tensors: the result would depend on
/// the rounding, and silently so.
enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

std::string_view to_string(ReduceOp op);

}  // namespace tessera

namespace c10 {
struct Allocator;
}  // namespace c10

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace tessera {

class Group;
namespace comm {
class Call;
class Task;
}  // namespace comm

/// A group of ranks that can talk. A handle: cheap to copy, copies share the group.
///
/// Conventions. `dim` counts as in LibTorch (negative from the end). `sizes` gives each rank's extent along `dim`;
/// without it the pieces are equal. Every rank of the group must make the same calls in the same order, except that
/// `send` and `recv` match each other in order for each pair of ranks. Every function has a form ending in `_async`
/// that returns a `Work`. The last argument is the call site, recorded for error messages.
/// Thread-safety: one thread at a time for each group.
class Communicator {
 public:
  using Where = std::source_location;
  using Sizes = std::vector<std::int64_t>;

  explicit Communicator(std::shared_ptr<Group> group);

  int rank() const;  ///< of this process in this group
  int size() const;
  int world_rank() const;                   ///< of this process in the world
  int world_rank_of(int group_rank) const;  ///< of another member
  const std::string& name() const;          ///< of the group: "world", "world/dp.3"
  std::string backend() const;              ///< of the CPU: "gloo", "mpi", "shm", "threads", "fake", or a custom name
  std::chrono::milliseconds timeout() const;
  CommunicationStrategy strategy() const;

  /// The same group with another deadline for each call.
  Communicator with_timeout(std::chrono::milliseconds timeout) const;
  /// The same group with another algorithm for all_reduce, all_gather, reduce_scatter, broadcast, reduce and barrier.
  Communicator with_strategy(CommunicationStrategy strategy) const;

  /// The subgroup of these ranks (of this group, in the new order; this rank among them). Local: nothing is sent until
  /// its first use. Requires: every member calls it with the same ranks, the same number of times; others need not
  /// call. `name` is for messages; by default the ranks are spelled out.
  Communicator split(const std::vector<int>& ranks, const std::string& name = "") const;
  /// The subgroup of all ranks for which `color_of(rank)` equals this rank's. `color_of` must be the same function on
  /// all ranks.
  Communicator split_by(const std::function<int(int)>& color_of, const std::string& name = "") const;

  // ---- Collective: over the whole group -----------------------------------------------------------------------------

  /// Combines `tensor` over the ranks, in place.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, Where where = Where::current()) const;
  Work all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, Where where = Where::current()) const;

  /// Sums `contributions` of all ranks along one fixed binary tree over their global order (rank 0's first): the same
  /// bits whether 8 contributions lie on 1, 2, 4 or 8 ranks. Requires: the same power-of-two number on every rank, a
  /// power-of-two group. Floating point only. Returns the sum.
  at::Tensor all_reduce_contributions(const std::vector<at::Tensor>& contributions,
                                      Where where = Where::current()) const;

  /// All ranks' pieces joined along `dim`, in rank order.
  at::Tensor all_gather(const at::Tensor& piece, std::int64_t dim = 0, Where where = Where::current()) const;
  at::Tensor all_gather(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes,
                        Where where = Where::current()) const;
  Work all_gather_async(const at::Tensor& piece, std::int64_t dim = 0, Where where = Where::current()) const;
  Work all_gather_async(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes,
                        Where where = Where::current()) const;
  /// Into existing memory: `whole` and `piece` contiguous, joined along dim 0. `piece` may be its own slice of `whole`.
  /// `counts` are elements, not rows.
  Work all_gather_into_async(at::Tensor whole, const at::Tensor& piece, const Sizes& counts = {},
                             Where where = Where::current()) const;
  void all_gather_into(at::Tensor whole, const at::Tensor& piece, const Sizes& counts = {},
                       Where where = Where::current()) const;

  /// This rank's piece along `dim` of the combination of all ranks' `whole`.
  at::Tensor reduce_scatter(const at::Tensor& whole, ReduceOp op = ReduceOp::kSum, std::int64_t dim = 0,
                            Where where = Where::current()) const;
  at::Tensor reduce_scatter(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes,
                            Where where = Where::current()) const;
  Work reduce_scatter_async(const at::Tensor& whole, ReduceOp op = ReduceOp::kSum, std::int64_t dim = 0,
                            Where where = Where::current()) const;
  Work reduce_scatter_async(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes,
                            Where where = Where::current()) const;
  /// Into existing memory, as `all_gather_into`. `piece` may be its own slice of `whole`.
  Work reduce_scatter_into_async(at::Tensor piece, const at::Tensor& whole, ReduceOp op = ReduceOp::kSum,
                                 const Sizes& counts = {}, Where where = Where::current()) const;
  void reduce_scatter_into(at::Tensor piece, const at::Tensor& whole, ReduceOp op = ReduceOp::kSum,
                           const Sizes& counts = {}, Where where = Where::current()) const;

  /// `tensor` of `root` on every rank, in place.
  void broadcast(at::Tensor tensor, int root, Where where = Where::current()) const;
  Work broadcast_async(at::Tensor tensor, int root, Where where = Where::current()) const;

  /// As all_reduce, but only `root`'s tensor holds the result afterwards; the others' keep their values.
  void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum, Where where = Where::current()) const;
  Work reduce_async(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum, Where where = Where::current()) const;

  /// On `root` all pieces joined along `dim`; an undefined tensor on the others.
  at::Tensor gather(const at::Tensor& piece, int root, std::int64_t dim = 0, const Sizes& sizes = {},
                    Where where = Where::current()) const;
  Work gather_async(const at::Tensor& piece, int root, std::int64_t dim = 0, const Sizes& sizes = {},
                    Where where = Where::current()) const;

  /// This rank's piece along `dim` of `root`'s `whole`. The others pass a tensor of the same shape and dtype, whose
  /// values do not matter (an expanded `at::empty({1}).expand(...)` will do).
  at::Tensor scatter(const at::Tensor& whole, int root, std::int64_t dim = 0, const Sizes& sizes = {},
                     Where where = Where::current()) const;
  Work scatter_async(const at::Tensor& whole, int root, std::int64_t dim = 0, const Sizes& sizes = {},
                     Where where = Where::current()) const;

  /// Piece r of `tensor` along `dim` goes to rank r; returns what arrives, joined along `dim` in rank order.
  /// `send_sizes` and `recv_sizes` are extents along `dim`; both empty means equal pieces.
  at::Tensor all_to_all(const at::Tensor& tensor, std::int64_t dim = 0, const Sizes& send_sizes = {},
                        const Sizes& recv_sizes = {}, Where where = Where::current()) const;
  Work all_to_all_async(const at::Tensor& tensor, std::int64_t dim = 0, const Sizes& send_sizes = {},
                        const Sizes& recv_sizes = {}, Where where = Where::current()) const;

  /// Returns when every rank has called it. Of host threads: streams of devices go on.
  void barrier(Where where = Where::current()) const;
  Work barrier_async(Where where = Where::current()) const;

  // ---- Between two ranks --------------------------------------------------------------------------------------------

  void send(const at::Tensor& tensor, int to, Where where = Where::current()) const;
  Work send_async(const at::Tensor& tensor, int to, Where where = Where::current()) const;
  /// Into a tensor of the sender's shape and dtype.
  void recv(at::Tensor tensor, int from, Where where = Where::current()) const;
  Work recv_async(at::Tensor tensor, int from, Where where = Where::current()) const;
  /// A new tensor of this shape and these options.
  at::Tensor recv(at::IntArrayRef shape, const at::TensorOptions& options, int from,
                  Where where = Where::current()) const;

  // ---- Memory -------------------------------------------------------------------------------------------------------

  /// An uninitialised tensor in memory that this group moves with the fewest copies: shared mappings on one host,
  /// ordinary memory elsewhere. The pages return to the system when the tensor is freed.
  at::Tensor empty(at::IntArrayRef shape, const at::TensorOptions& options = {}) const;
  /// The allocator that `empty` uses; null where it uses ordinary memory.
  std::shared_ptr<c10::Allocator> allocator() const;
  /// Whether the ranks of this group access `tensor` without a copy through staging.
  bool is_zero_copy(const at::Tensor& tensor) const;
  /// Whether the ranks of this group read each other's memory. Their cores then do the copying and adding that other
  /// backends leave to a network.
  bool shares_memory() const;

  // ---- For layers above, and for the curious ------------------------------------------------------------------------

  /// The last calls of this process in all groups of this world, oldest first (a fixed number of them).
  std::vector<CallRecord> recent_calls() const;
  /// This group as `c10d::Reducer` and other c10d code takes it, for tensors of the CPU and of this device. Blocks:
  /// until the group is connected.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group(const at::Device& device = at::kCPU) const;

 private:
  friend class GroupMemory;
  friend class comm::Task;
  struct Settings {
    std::chrono::milliseconds timeout;
    CommunicationStrategy strategy;
  };
  Communicator(std::shared_ptr<Group> group, Settings settings);

  // Each collective has one function that starts it. `async`: the caller does not wait for the result at once.
  Work start_all_reduce(const at::Tensor& tensor, ReduceOp op, bool async, const Where& where) const;
  Work start_broadcast(const at::Tensor& tensor, int root, bool async, const Where& where) const;
  Work start_reduce(const at::Tensor& tensor, int root, ReduceOp op, bool async, const Where& where) const;
  Work start_all_gather(const at::Tensor& piece, std::int64_t dim, const Sizes& sizes, bool async,
                        const Where& where) const;
  Work start_all_gather_into(comm::Call& call, const at::Tensor& whole, const at::Tensor& piece, const Sizes& counts,
                             bool async) const;
  Work start_reduce_scatter(const at::Tensor& whole, ReduceOp op, std::int64_t dim, const Sizes& sizes, bool async,
                            const Where& where) const;
  Work start_reduce_scatter_into(comm::Call& call, const at::Tensor& piece, const at::Tensor& whole, ReduceOp op,
                                 const Sizes& counts, bool async) const;
  Work add_on_devices(comm::Call& call, const at::Tensor& sum, ReduceOp op, bool async) const;
  Work start_gather(const at::Tensor& piece, int root, std::int64_t dim, const Sizes& sizes, bool async,
                    const Where& where) const;
  Work start_scatter(const at::Tensor& whole, int root, std::int64_t dim, const Sizes& sizes, bool async,
                     const Where& where) const;
  Work start_all_to_all(const at::Tensor& tensor, std::int64_t dim, const Sizes& send_sizes, const Sizes& recv_sizes,
                        bool async, const Where& where) const;
  Work start_barrier(bool async, const Where& where) const;
  Work start_send(const at::Tensor& tensor, int to, bool async, const Where& where) const;
  Work start_recv(const at::Tensor& tensor, int from, bool async, const Where& where) const;
  c10d::Backend& route(const at::Tensor& tensor) const;
  /// Without a strategy.
  c10d::Backend& route_plainly(const at::Tensor& tensor) const;

  std::shared_ptr<Group> group_;
  Settings settings_;
};

}  // namespace tessera
