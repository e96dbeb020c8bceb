#pragma once

#include <memory>

#include "comm/engine/engine_backend.h"

namespace tessera::comm {

/// LibTorch's Gloo, with what it lacks filled in by our algorithms over its messages: uneven all_gather,
/// reduce_scatter, gather and scatter. Its reduce_scatter sends everything to everyone; for large tensors our ring
/// takes its place.
class GlooBackend : public EngineBackend {
 public:
  GlooBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<Transport> transport,
              std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Backend>& bare() const { return gloo_; }

  const std::string getBackendName() const override { return "gloo"; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace tessera::comm
