#pragma once

#include <tessera/comm/transport.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>

#include "comm/connector.h"
#include "comm/engine/engine_backend.h"

namespace tessera::comm {

/// Messages through Gloo's own sends and receives; the channel is the tag.
class GlooTransport : public Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

  std::string name() const override { return "gloo"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override;
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override;

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

/// `host` is the address or the name of the interface to bind to; empty leaves the choice to Gloo.
Connection connect_gloo(const ConnectRequest& request, const std::string& host);

/// The bare `c10d::ProcessGroupGloo` below a backend that `connect_gloo` made, for benchmarks against it.
c10::intrusive_ptr<c10d::Backend> bare_gloo(const c10::intrusive_ptr<c10d::Backend>& ours);

/// LibTorch's Gloo. Our algorithms over its messages provide what it lacks: uneven all_gather, reduce_scatter, gather
/// and scatter. Gloo's own reduce_scatter sends everything to every rank; for large tensors our ring replaces it.
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
