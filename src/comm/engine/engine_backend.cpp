#include "comm/engine/engine_backend.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tessera::comm {
namespace {

class ThenWork : public c10d::Work {
 public:
  ThenWork(c10::intrusive_ptr<c10d::Work> first, std::function<void()> finish)
      : first_(std::move(first)), finish_(std::move(finish)) {}

  bool isCompleted() override { return first_->isCompleted(); }
  bool isSuccess() const override { return first_->isSuccess(); }
  std::exception_ptr exception() const override { return first_->exception(); }
  std::vector<at::Tensor> result() override { return first_->result(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = first_->wait(timeout);
    finish_once();
    return done;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<ThenWork>::reclaim_copy(this);
    return first_->getFuture()->then(
        [self](c10::ivalue::Future& future) {
          self->finish_once();
          return future.value();
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  void finish_once() { std::call_once(finished_, finish_); }

  c10::intrusive_ptr<c10d::Work> first_;
  std::function<void()> finish_;
  std::once_flag finished_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> then(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish) {
  return c10::make_intrusive<ThenWork>(std::move(work), std::move(finish));
}

namespace {

bool adjoin(const std::vector<at::Tensor>& tensors) {
  const std::byte* expected = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    if (!tensor.is_contiguous() || (expected != nullptr && data != expected)) return false;
    expected = data + tensor.nbytes();
  }
  return true;
}

at::Tensor flat_copy(const std::vector<at::Tensor>& tensors, bool load) {
  std::vector<at::Tensor> rows;
  std::int64_t count = 0;
  for (const auto& tensor : tensors) {
    rows.push_back(tensor.reshape({-1}));
    count += tensor.numel();
  }
  return load ? at::cat(rows) : at::empty({count}, tensors.front().options());
}

}  // namespace

TensorList::TensorList(std::vector<at::Tensor> tensors, bool load) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw ConfigError("an empty list of tensors was passed to a collective");
  for (const auto& tensor : tensors_) {
    if (tensor.scalar_type() != tensors_.front().scalar_type()) {
      throw ConfigError("the tensors of one collective must have one type");
    }
    counts_.push_back(tensor.numel());
  }
  if (!adjoin(tensors_)) copy_ = flat_copy(tensors_, load);
}

Buffer TensorList::flat() const {
  if (copy_.defined()) return buffer_of(copy_);
  Buffer buffer{nullptr, 0, tensors_.front().scalar_type()};
  for (const auto& tensor : tensors_) {
    if (buffer.data == nullptr && tensor.numel() > 0) buffer.data = buffer_of(tensor).data;
    buffer.count += tensor.numel();
  }
  return buffer;
}

void TensorList::store() const {
  if (!copy_.defined()) return;
  std::int64_t begin = 0;
  for (const auto& tensor : tensors_) {
    at::Tensor target = tensor;
    target.copy_(copy_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

namespace {

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) throw ConfigError("expected one tensor a rank, found " + std::to_string(tensors.size()));
  return tensors.front();
}

template <typename Lists>
const auto& only_list(const Lists& lists) {
  if (lists.size() != 1) throw ConfigError("expected one list a rank, found " + std::to_string(lists.size()));
  return lists.front();
}

std::shared_ptr<TensorList> list_of(const std::vector<at::Tensor>& tensors, bool load) {
  return std::make_shared<TensorList>(tensors, load);
}

}  // namespace

Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.is_contiguous() || !tensor.device().is_cpu()) {
    throw ConfigError("this backend takes contiguous CPU tensors; found one of shape " + c10::str(tensor.sizes()) +
                      (tensor.device().is_cpu() ? " that is strided" : " on " + tensor.device().str()));
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.numel(), tensor.scalar_type()};
}

ReduceOp reduce_op_of(const c10d::ReduceOp& op, c10::ScalarType dtype) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      if (!c10::isFloatingType(dtype)) throw ConfigError("an average of integers would have to be rounded; sum them");
      return ReduceOp::kAvg;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      throw ConfigError("this backend reduces by sum, average, minimum, maximum or product only");
  }
}

EngineBackend::EngineBackend(int rank, int size, std::shared_ptr<CollectiveEngine> engine,
                             std::shared_ptr<Transport> transport, std::chrono::milliseconds timeout,
                             CommAllocator allocator)
    : c10d::Backend(rank, size),
      engine_(std::move(engine)),
      transport_(std::move(transport)),
      timeout_(timeout),
      allocator_(std::move(allocator)),
      executor_(rank) {}

c10::intrusive_ptr<c10d::Backend::Options> EngineBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_);
}

std::chrono::milliseconds EngineBackend::timeout_or_default(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_;
}

Counts EngineBackend::equal_counts(std::int64_t total) const {
  if (total % getSize() != 0) {
    throw ConfigError("expected a multiple of " + std::to_string(getSize()) + " elements, found " +
                      std::to_string(total) + "; pass the size of each rank's piece");
  }
  return Counts(static_cast<std::size_t>(getSize()), total / getSize());
}

EngineBackend::WorkPtr EngineBackend::run(c10d::OpType type, bool async, std::chrono::milliseconds timeout,
                                          std::vector<at::Tensor> outputs, std::function<void(Deadline)> operation) {
  ++sequence_;
  timeout = timeout_or_default(timeout);
  return executor_.run(type, async, std::move(outputs),
                       [operation = std::move(operation), timeout] { operation(Deadline::after(timeout)); });
}

EngineBackend::WorkPtr EngineBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  const Buffer data = buffer_of(only(tensors));
  return run(c10d::OpType::BROADCAST, opts.asyncOp, opts.timeout, tensors,
             [this, data, root = static_cast<int>(opts.rootRank)](Deadline deadline) {
               engine_->broadcast(data, root, deadline);
             });
}

EngineBackend::WorkPtr EngineBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  const Buffer data = buffer_of(only(tensors));
  return run(c10d::OpType::ALLREDUCE, opts.asyncOp, opts.timeout, tensors,
             [this, data, op = reduce_op_of(opts.reduceOp, data.dtype)](Deadline deadline) {
               engine_->all_reduce(data, op, deadline);
             });
}

EngineBackend::WorkPtr EngineBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                          const c10d::AllreduceCoalescedOptions& opts) {
  auto list = list_of(tensors, true);
  return run(c10d::OpType::ALLREDUCE_COALESCED, opts.asyncOp, opts.timeout, tensors,
             [this, list, op = reduce_op_of(opts.reduceOp, list->flat().dtype)](Deadline deadline) {
               engine_->all_reduce(list->flat(), op, deadline);
               list->store();
             });
}

EngineBackend::WorkPtr EngineBackend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  const Buffer data = buffer_of(only(tensors));
  return run(c10d::OpType::REDUCE, opts.asyncOp, opts.timeout, tensors,
             [this, data, op = reduce_op_of(opts.reduceOp, data.dtype), root = static_cast<int>(opts.rootRank)](
                 Deadline deadline) { engine_->reduce(data, root, op, deadline); });
}

EngineBackend::WorkPtr EngineBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  auto whole = list_of(only_list(outputs), false);
  const at::Tensor input = only(inputs);
  const Buffer piece = buffer_of(input);
  return run(c10d::OpType::ALLGATHER, opts.asyncOp, opts.timeout, outputs.front(),
             [this, whole, input, piece](Deadline deadline) {
               engine_->all_gather(whole->flat(), piece, whole->counts(), deadline);
               whole->store();
             });
}

EngineBackend::WorkPtr EngineBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& opts) {
  const Buffer whole = buffer_of(output);
  const Buffer piece = buffer_of(input);
  return run(c10d::OpType::_ALLGATHER_BASE, opts.asyncOp, opts.timeout, {output},
             [this, whole, piece, input, counts = equal_counts(whole.count)](Deadline deadline) {
               engine_->all_gather(whole, piece, counts, deadline);
             });
}

EngineBackend::WorkPtr EngineBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                             std::vector<at::Tensor>& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor input = only(inputs);
  const Buffer piece = buffer_of(input);
  const int root = static_cast<int>(opts.rootRank);
  auto whole = root == getRank() ? list_of(only_list(outputs), false) : nullptr;
  return run(c10d::OpType::GATHER, opts.asyncOp, opts.timeout, whole ? outputs.front() : std::vector<at::Tensor>{},
             [this, whole, input, piece, root](Deadline deadline) {
               engine_->gather(whole ? whole->flat() : Buffer{nullptr, 0, piece.dtype}, piece,
                               whole ? whole->counts() : Counts{}, root, deadline);
               if (whole) whole->store();
             });
}

EngineBackend::WorkPtr EngineBackend::scatter(std::vector<at::Tensor>& outputs,
                                              std::vector<std::vector<at::Tensor>>& inputs,
                                              const c10d::ScatterOptions& opts) {
  const Buffer piece = buffer_of(only(outputs));
  const int root = static_cast<int>(opts.rootRank);
  auto whole = root == getRank() ? list_of(only_list(inputs), true) : nullptr;
  return run(c10d::OpType::SCATTER, opts.asyncOp, opts.timeout, outputs, [this, whole, piece, root](Deadline deadline) {
    engine_->scatter(piece, whole ? whole->flat() : Buffer{nullptr, 0, piece.dtype}, whole ? whole->counts() : Counts{},
                     root, deadline);
  });
}

EngineBackend::WorkPtr EngineBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                     std::vector<std::vector<at::Tensor>>& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  const Buffer piece = buffer_of(only(outputs));
  auto whole = list_of(only_list(inputs), true);
  return run(c10d::OpType::REDUCE_SCATTER, opts.asyncOp, opts.timeout, outputs,
             [this, whole, piece, op = reduce_op_of(opts.reduceOp, piece.dtype)](Deadline deadline) {
               engine_->reduce_scatter(piece, whole->flat(), whole->counts(), op, deadline);
             });
}

EngineBackend::WorkPtr EngineBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& opts) {
  const Buffer piece = buffer_of(output);
  const Buffer whole = buffer_of(input);
  return run(
      c10d::OpType::_REDUCE_SCATTER_BASE, opts.asyncOp, opts.timeout, {output},
      [this, piece, whole, input, counts = equal_counts(whole.count), op = reduce_op_of(opts.reduceOp, whole.dtype)](
          Deadline deadline) { engine_->reduce_scatter(piece, whole, counts, op, deadline); });
}

EngineBackend::WorkPtr EngineBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_sizes,
                                                    std::vector<int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& opts) {
  // c10d counts rows of dimension 0; the engine counts elements.
  const auto elements = [this](const at::Tensor& tensor, const std::vector<int64_t>& rows) {
    if (rows.empty()) return equal_counts(tensor.numel());
    Counts counts(rows);
    const std::int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
    for (auto& count : counts) count *= row;
    return counts;
  };
  const Buffer received = buffer_of(output);
  const Buffer sent = buffer_of(input);
  return run(c10d::OpType::ALLTOALL_BASE, opts.asyncOp, opts.timeout, {output},
             [this, received, sent, input, recv_counts = elements(output, output_sizes),
              send_counts = elements(input, input_sizes)](Deadline deadline) {
               engine_->all_to_all(received, recv_counts, sent, send_counts, deadline);
             });
}

EngineBackend::WorkPtr EngineBackend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                               const c10d::AllToAllOptions& opts) {
  auto received = list_of(outputs, false);
  auto sent = list_of(inputs, true);
  return run(c10d::OpType::ALLTOALL, opts.asyncOp, opts.timeout, outputs, [this, received, sent](Deadline deadline) {
    engine_->all_to_all(received->flat(), received->counts(), sent->flat(), sent->counts(), deadline);
    received->store();
  });
}

EngineBackend::WorkPtr EngineBackend::send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) {
  const at::Tensor& tensor = only(tensors);
  auto transfer = transport_->send(buffer_of(tensor).bytes(), to, kUserChannel);
  transport_->progress_in_background();
  return c10::make_intrusive<TransferWork>(getRank(), c10d::OpType::SEND, tensor, std::move(transfer), timeout_);
}

EngineBackend::WorkPtr EngineBackend::recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) {
  const at::Tensor& tensor = only(tensors);
  auto transfer = transport_->recv(buffer_of(tensor).bytes(), from, kUserChannel);
  transport_->progress_in_background();
  return c10::make_intrusive<TransferWork>(getRank(), c10d::OpType::RECV, tensor, std::move(transfer), timeout_);
}

EngineBackend::WorkPtr EngineBackend::barrier(const c10d::BarrierOptions& opts) {
  return run(c10d::OpType::BARRIER, opts.asyncOp, opts.timeout, {},
             [this](Deadline deadline) { engine_->barrier(deadline); });
}

bool EngineBackend::supportsTensorAlloc(c10::DeviceIndex /*device*/) { return allocator_ != nullptr; }

std::shared_ptr<c10::Allocator> EngineBackend::getMemAllocator() {
  if (!allocator_) throw ConfigError("the backend " + getBackendName() + " has no memory of its own");
  return allocator_;
}

at::Tensor EngineBackend::allocateTensor(long size, at::TensorOptions options) {
  return allocator_ ? tensor_from(allocator_.get(), {size}, c10::typeMetaToScalarType(options.dtype()))
                    : at::empty({size}, options);
}

at::Tensor tensor_from(c10::Allocator* allocator, at::IntArrayRef shape, c10::ScalarType dtype) {
  return at::Tensor(
      at::detail::empty_generic(shape, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt));
}

}  // namespace tessera::comm
