#pragma once

#include <tessera/core/options.h>
#include <tessera/data_parallel/gradient_hook.h>

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

struct DdpOptions {
  /// The gradients of at least so many bytes travel together. Smaller: more overlap with backward; larger: fewer
  /// messages. `DistributedModel::set_bucket_bytes` changes it while running.
  TORCH_ARG(std::int64_t, bucket_bytes) = std::int64_t{25} << 20;
  /// The size of the bucket that is ready first, smaller so that communication starts early.
  TORCH_ARG(std::int64_t, first_bucket_bytes) = std::int64_t{1} << 20;
  /// Allow parameters that get no gradient in a step, others on each rank. Costs a look at the graph and a small
  /// all-reduce a step. A parameter that no rank used keeps the gradient that it had; in reproducible mode it gets
  /// zeros.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Gradients are views into the buckets: saves their memory and a copy. Off: `grad()` is memory of its own, for code
  /// that keeps it beyond the next step.
  TORCH_ARG(bool, gradient_as_bucket_view) = true;
  /// The graph is the same in every step; then unused parameters and parameters used several times cost nothing more
  /// after the first.
  TORCH_ARG(bool, static_graph) = false;
  /// Reduce only when all gradients are there. Gives up the overlap with backward; for measurements, and for graphs
  /// in which a parameter gets its gradient in several pieces. A parameter without gradient counts as zero.
  TORCH_ARG(bool, delay_all_reduce) = false;
  /// Before each forward that builds a graph, and after each backward that averages, every rank takes rank 0's buffers
  /// (BatchNorm's running statistics, say).
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// At the start every rank takes rank 0's parameters and buffers. Off: they are the same already, and you know it.
  TORCH_ARG(bool, init_sync) = true;
  /// How gradients travel: "none", "fp16", "bf16", "int8" or "powersgd".
  TORCH_ARG(std::string, compression) = "none";
  /// One's own way for gradients to travel. Requires: compression "none".
  TORCH_ARG(std::shared_ptr<GradientHook>, hook) = nullptr;
  /// The same weights, bit for bit, on 1, 2, 4, 8, ... ranks: docs/guides/reproducible.md. Turns on LibTorch's
  /// deterministic algorithms and sets the number of threads, for the process and for good; uses no buckets.
  TORCH_ARG(bool, reproducible) = false;
  /// Only with `reproducible`: the micro-batches of a step over all ranks, a power of two.
  TORCH_ARG(std::int64_t, micro_batches) = 0;
  /// Only with `reproducible`: the threads of each rank, because some kernels' results depend on it.
  TORCH_ARG(std::int64_t, num_threads) = 1;

 public:
  static const FieldList<DdpOptions>& fields();
};

}  // namespace tessera
