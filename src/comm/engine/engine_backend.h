#pragma once

#include <tessera/comm/transport.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/collective_engine.h"
#include "comm/engine/executor.h"

namespace tessera::comm {

/// A transfer as c10d sees it. Keeps the tensor alive.
class TransferWork : public c10d::Work {
 public:
  TransferWork(int rank, c10d::OpType type, at::Tensor tensor, std::unique_ptr<Transfer> transfer,
               std::chrono::milliseconds timeout)
      : c10d::Work(rank, type), tensor_(std::move(tensor)), transfer_(std::move(transfer)), timeout_(timeout) {}

  bool isCompleted() override { return done_ || transfer_->test(); }
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout.count() <= 0) timeout = timeout_;
    if (!done_) transfer_->wait(std::chrono::steady_clock::now() + timeout);
    done_ = true;
    return true;
  }

 private:
  at::Tensor tensor_;
  std::unique_ptr<Transfer> transfer_;
  std::chrono::milliseconds timeout_;
  bool done_ = false;
};

/// `work`, completed by `finish`, which runs once: before a waiter returns, or before the future completes.
c10::intrusive_ptr<c10d::Work> then(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish);

/// A list of tensors as one flat buffer: their own memory if they lie one after another in it, else a copy.
class TensorList {
 public:
  /// `load` copies the tensors' values into the flat copy, if there is one.
  TensorList(std::vector<at::Tensor> tensors, bool load);

  Buffer flat() const;
  const Counts& counts() const { return counts_; }
  /// Copies the flat values back into the tensors, if they are elsewhere.
  void store() const;

 private:
  std::vector<at::Tensor> tensors_;
  Counts counts_;
  at::Tensor copy_;  // undefined when the tensors adjoin
};

/// Allocates communicator memory; null where ordinary memory serves as well.
using CommAllocator = std::shared_ptr<c10::Allocator>;

/// A `c10d::Backend` whose collectives an engine performs and whose messages a transport carries.
/// Tensors must be contiguous and on the CPU. Lists of tensors that lie one after another in memory are used where they
/// are; others go through a flat copy.
class EngineBackend : public c10d::Backend {
 public:
  EngineBackend(int rank, int size, std::shared_ptr<CollectiveEngine> engine, std::shared_ptr<Transport> transport,
                std::chrono::milliseconds timeout, CommAllocator allocator = nullptr);

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return engine_->name(); }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                   const c10d::AllToAllOptions& opts) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

 protected:
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  Counts equal_counts(std::int64_t total) const;

 private:
  WorkPtr run(c10d::OpType type, bool async, std::chrono::milliseconds timeout, std::vector<at::Tensor> outputs,
              std::function<void(Deadline)> operation);

  std::shared_ptr<CollectiveEngine> engine_;
  std::shared_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;
  CommAllocator allocator_;
  std::uint64_t sequence_ = 0;
  Executor executor_;  // last: its destructor runs what is queued, which uses the members above
};

/// The flat memory of a contiguous CPU tensor. Throws ConfigError for any other.
Buffer buffer_of(const at::Tensor& tensor);

/// An uninitialised contiguous CPU tensor whose memory `allocator` provides.
at::Tensor tensor_from(c10::Allocator* allocator, at::IntArrayRef shape, c10::ScalarType dtype);

/// c10d's operation as ours. Throws ConfigError for those that we do not have (bitwise, pre-multiplied), and for an
/// average of integers.
ReduceOp reduce_op_of(const c10d::ReduceOp& op, c10::ScalarType dtype);

}  // namespace tessera::comm
