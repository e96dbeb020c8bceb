#pragma once

#include <tessera/core/options.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// Where a model is cut into stages, and in which order they work.
struct PipelineOptions {
  /// The modules with which the second and later stages begin, as the model names them, in its order: {"blocks.6"}.
  /// Empty: stages are cut between layers, such that the largest has as few parameters as possible. Layers are the
  /// elements of the model's `ModuleList`s and `Sequential`s or, if they are too few, modules with parameters of their
  /// own.
  TORCH_ARG(std::vector<std::string>, split) = {};
  /// Instead: how many layers each stage has. What lies before the first layer goes with it, and what lies behind the
  /// last layer with that.
  TORCH_ARG(std::vector<std::int64_t>, layers_per_stage) = {};
  /// Instead: what each layer costs, in any unit, as measure_layers() finds it. The costliest stage then costs as
  /// little as can be. No key of files.
  TORCH_ARG(std::vector<double>, layer_costs) = {};
  /// Modules or tensors that belong to another stage than their place in the model says: {"head: 1"}. For models that
  /// register modules in another order than they use them.
  TORCH_ARG(std::vector<std::string>, place) = {};
  /// "sequential", "round_robin", "gpipe", "1f1b", "interleaved", "zb-h1" or "zb-v": see `tessera plan schedule`. The
  /// last two fill idle times with the gradients of weights, as far as these are factors of a product of matrices.
  TORCH_ARG(std::string, schedule) = "1f1b";
  /// Stages of each rank with "interleaved". 0: two.
  TORCH_ARG(std::int64_t, num_chunks) = 0;
  /// A schedule of your own, for a number of micro-batches. Must be the same on every rank. Check it by
  /// check_schedule().
  TORCH_ARG(std::function<PipelineSchedule(int num_micro_batches)>, own_schedule) = nullptr;
  /// The forward may run other operators for each micro-batch, as when layers are skipped at random: it is then tried
  /// without bytes for each of them in every step. Off: once for all of the same shapes, and another way is refused.
  TORCH_ARG(bool, dynamic) = false;
  /// The same weights, bit for bit, on any number of stages, and of copies of them that is a power of two:
  /// docs/guides/reproducible.md. Micro-batches are a power of two, with equal weights, and nothing draws random
  /// numbers. Gradients of weights are not put off.
  TORCH_ARG(bool, reproducible) = false;
  /// At the start every rank takes rank 0's parameters and buffers. Off: they are the same already, and you know it.
  TORCH_ARG(bool, init_sync) = true;
  /// In so many steps the values of the batch are compared between the ranks, which must all have the same one. 0:
  /// never.
  TORCH_ARG(std::int64_t, num_checked_steps) = 8;
  /// So many messages from each rank are received before they are needed. More hide more, and take memory.
  TORCH_ARG(std::int64_t, receive_ahead) = 2;

 public:
  static const FieldList<PipelineOptions>& fields();
};

}  // namespace tessera
