#include "support/sim_device/sim_backend.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "support/sim_device/boxed.h"
#include "support/sim_device/runtime.h"

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Of the kernel of a call.
struct Failure {
  std::mutex mutex;
  std::exception_ptr error;
};

/// Over when the stream has come to its end.
class StreamWork : public c10d::Work {
 public:
  StreamWork(int rank, c10d::OpType type, c10::Stream stream, Tensors kept, Tensors outputs, bool blocks_host,
             std::shared_ptr<Failure> failure)
      : c10d::Work(rank, type),
        device_(stream.device()),
        stream_(stream),
        failure_(std::move(failure)),
        kept_(std::move(kept)),
        outputs_(std::move(outputs)),
        blocks_host_(blocks_host) {
    end_.record(stream);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{device_});
    const c10::StreamGuard guard(stream);  // whose end callbacks and waiters of the future wait for
    future_->markCompleted(c10::IValue(outputs_));
  }

  /// Nobody has waited: as with NCCL, the tensors stay until the device is done.
  ~StreamWork() override {
    const c10::impl::VirtualGuardImpl guard(kSim);
    for (const Tensor& one : kept_) guard.recordDataPtrOnStream(one.storage().data_ptr(), stream_);
  }

  bool isCompleted() override { return end_.query(); }
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override {
    const std::lock_guard lock(failure_->mutex);
    return failure_->error;
  }
  Tensors result() override { return outputs_; }
  void synchronize() override {
    end_.block(current_stream(device_.index()));
    kept_.clear();  // from here on they are used in the order of the current stream
  }
  void blockCurrentStream() override { synchronize(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    if (blocks_host_) end_.synchronize();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const c10::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<Failure> failure_;
  c10::Event end_{kSim};
  Tensors kept_;
  const Tensors outputs_;
  const bool blocks_host_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Tensors on_host_all(const Tensors& tensors) {
  Tensors all;
  for (const Tensor& one : tensors) all.push_back(on_host(one));
  return all;
}

const Tensors& lists_first(const std::vector<Tensors>& lists) {
  static const Tensors none;
  return lists.empty() ? none : lists.front();
}

class SimBackend : public c10d::Backend {
 public:
  explicit SimBackend(c10::intrusive_ptr<c10d::Backend> cpu)
      : c10d::Backend(cpu->getRank(), cpu->getSize()), cpu_(std::move(cpu)) {}
  /// Blocks: until its kernels are over.
  ~SimBackend() override {
    for (const auto& [key, stream] : streams_) {
      const StreamQueue& queue = Runtime::get().queue(stream);
      queue.wait(queue.last_ticket());
    }
  }

  const std::string getBackendName() const override { return "sim"; }  // NOLINT: as in the base class
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return num_calls_; }
  void setTimeout(std::chrono::milliseconds timeout) override { cpu_->setTimeout(timeout); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool is_root = getRank() == options.rootRank;
    return run(c10d::OpType::BROADCAST, is_root ? tensors : Tensors{}, is_root ? Tensors{} : tensors,
               [this, at = on_host_all(tensors), options]() mutable { return cpu_->broadcast(at, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run(c10d::OpType::ALLREDUCE, {}, tensors,
               [this, at = on_host_all(tensors), options]() mutable { return cpu_->allreduce(at, options); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return run(c10d::OpType::ALLREDUCE_COALESCED, {}, tensors,
               [this, at = on_host_all(tensors), options]() mutable { return cpu_->allreduce_coalesced(at, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    // As with NCCL, ranks that are not the root may find anything in theirs; the CPU's keep what they had.
    return run(c10d::OpType::REDUCE, {}, tensors,
               [this, at = on_host_all(tensors), options]() mutable { return cpu_->reduce(at, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return run(c10d::OpType::ALLGATHER, inputs, lists_first(outputs),
               [this, to = std::vector<Tensors>{on_host_all(lists_first(outputs))}, from = on_host_all(inputs),
                options]() mutable { return cpu_->allgather(to, from, options); });
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return run(c10d::OpType::_ALLGATHER_BASE, {input}, {output},
               [this, to = on_host(output), from = on_host(input), options]() mutable {
                 return cpu_->_allgather_base(to, from, options);
               });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    std::vector<Tensors> to;
    if (getRank() == options.rootRank) to.push_back(on_host_all(lists_first(outputs)));
    return run(c10d::OpType::GATHER, inputs, lists_first(outputs),
               [this, to, from = on_host_all(inputs), options]() mutable { return cpu_->gather(to, from, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    std::vector<Tensors> from;
    if (getRank() == options.rootRank) from.push_back(on_host_all(lists_first(inputs)));
    return run(c10d::OpType::SCATTER, lists_first(inputs), outputs,
               [this, to = on_host_all(outputs), from, options]() mutable { return cpu_->scatter(to, from, options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return run(c10d::OpType::REDUCE_SCATTER, lists_first(inputs), outputs,
               [this, to = on_host_all(outputs), from = std::vector<Tensors>{on_host_all(lists_first(inputs))},
                options]() mutable { return cpu_->reduce_scatter(to, from, options); });
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return run(c10d::OpType::_REDUCE_SCATTER_BASE, {input}, {output},
               [this, to = on_host(output), from = on_host(input), options]() mutable {
                 return cpu_->_reduce_scatter_base(to, from, options);
               });
  }
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return run(c10d::OpType::ALLTOALL_BASE, {input}, {output},
               [this, to = on_host(output), from = on_host(input), output_sizes, input_sizes, options]() mutable {
                 return cpu_->alltoall_base(to, from, output_sizes, input_sizes, options);
               });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return run(c10d::OpType::ALLTOALL, inputs, outputs,
               [this, to = on_host_all(outputs), from = on_host_all(inputs), options]() mutable {
                 return cpu_->alltoall(to, from, options);
               });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return run(c10d::OpType::BARRIER, {}, {}, [this, options] { return cpu_->barrier(options); }, kCollectives, true);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return run(
        c10d::OpType::SEND, tensors, {},
        [this, at = on_host_all(tensors), to, tag]() mutable { return cpu_->send(at, to, tag); }, to);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return run(
        c10d::OpType::RECV, {}, tensors,
        [this, at = on_host_all(tensors), from, tag]() mutable { return cpu_->recv(at, from, tag); }, from);
  }

 private:
  static constexpr int kCollectives = -1;

  c10::Stream stream_for(const c10::Device& device, int peer) {
    const std::lock_guard lock(mutex_);
    const auto key = std::pair(static_cast<int>(device.index()), peer);
    const auto known = streams_.find(key);
    if (known != streams_.end()) return known->second;
    return streams_.emplace(key, Runtime::get().new_stream(device.index())).first->second;
  }

  WorkPtr run(c10d::OpType type, Tensors inputs, Tensors outputs, std::function<WorkPtr()> call,
              int peer = kCollectives, bool blocks_host = false) {
    ++num_calls_;
    c10::Device device = sim::device(current_device());
    std::vector<Access> accesses;
    Tensors kept;
    for (const auto& [tensors, writes] : {std::pair(&inputs, false), std::pair(&outputs, true)}) {
      for (const Tensor& one : *tensors) {
        TORCH_CHECK(is_on_sim(one) && one.is_contiguous(), "expected contiguous tensors on a simulated device");
        device = one.device();
        accesses.push_back({one, writes});
        kept.push_back(one);
      }
    }
    const c10::DeviceGuard guard(device);
    const c10::Stream stream = stream_for(device, peer);
    c10::Event begin(kSim);
    begin.record(current_stream(device.index()));
    begin.block(stream);
    const auto failure = std::make_shared<Failure>();
    launch(stream, c10d::opTypeToString(type), accesses, [call = std::move(call), failure] {
      try {
        call()->wait(kNoTimeout);
      } catch (...) {
        const std::lock_guard lock(failure->mutex);
        failure->error = std::current_exception();
        throw;
      }
    });
    return c10::make_intrusive<StreamWork>(getRank(), type, stream, std::move(kept), std::move(outputs), blocks_host,
                                           failure);
  }

  const c10::intrusive_ptr<c10d::Backend> cpu_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, c10::Stream> streams_;
  std::atomic<std::uint64_t> num_calls_{0};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_sim_backend(c10::intrusive_ptr<c10d::Backend> cpu) {
  return c10::make_intrusive<SimBackend>(std::move(cpu));
}

}  // namespace tessera::testing::sim
