#pragma once

#include <tessera/core/options.h>
#include <tessera/shard/flat_source.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Decides which modules of a model become units. A unit is gathered, used and released as a whole. A module that does
/// not become a unit leaves its parameters to its parent; the model itself is a unit of the parameters that are left.
class WrapPolicy {
 public:
  /// `num_elements` counts the parameters of the module and its descendants that no unit within it has taken.
  using Decide =
      std::function<bool(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements)>;

  /// `decide` returns true for a module that becomes a unit. `text` is for messages; it must be the same on every rank.
  WrapPolicy(std::string text, Decide decide);

  bool wraps(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Decide decide_;
};

/// Every module with at least `min_elements` elements in its parameters.
WrapPolicy wrap_by_size(std::int64_t min_elements = 1000);
/// Every module of one of these types, by name: "torch::nn::LinearImpl", or without namespace and "Impl": "Linear".
WrapPolicy wrap_by_type(const std::vector<std::string>& type_names);
/// The model is one unit.
WrapPolicy wrap_none();

namespace detail {
WrapPolicy wrap_by_type_info(const std::vector<const std::type_info*>& types);
}  // namespace detail

/// Every module of one of these types: `wrap_by_type<BlockImpl>()`.
template <class... Modules>
WrapPolicy wrap_by_type() {
  return detail::wrap_by_type_info({&typeid(Modules)...});
}

/// Which tensors are cut into shards.
enum class ShardingStrategy {
  kFullShard,    ///< parameters, gradients and optimizer state (ZeRO-3); parameters are gathered for each use
  kShardGradOp,  ///< the same, but parameters stay gathered from their first use to the end of backward (ZeRO-2)
  kZero1,        ///< optimizer state and gradients; parameters are gathered once a step, into memory that is kept
  kNoShard,      ///< nothing: gradients are averaged as DDP does
  kHybridShard,  ///< kFullShard along one axis, replicas along another
};

/// When the parameters that backward needs next are gathered.
enum class BackwardPrefetch {
  kPre,   ///< before the present unit computes: most overlap, one more unit in memory
  kPost,  ///< when the gradients of the present unit are complete
  kNone,  ///< when they are used
};

/// The types in which a unit computes. Undefined: the parameters' own type.
struct UnitPrecision {
  /// The type of gathered parameters and of the gradients that backward computes. Shards keep their own type, so an
  /// optimizer updates exact master weights.
  c10::ScalarType param_dtype = c10::ScalarType::Undefined;
  /// The type in which gradients are averaged; by default the type in which backward computes them.
  c10::ScalarType reduce_dtype = c10::ScalarType::Undefined;
  /// The gradients of shards stay in `reduce_dtype`.
  bool keep_low_precision_grads = false;
};

struct FsdpOptions {
  /// What is sharded.
  TORCH_ARG(ShardingStrategy, strategy) = ShardingStrategy::kFullShard;
  /// Which modules become units. A unit is gathered as a whole: smaller units need less memory and more messages.
  TORCH_ARG(WrapPolicy, auto_wrap) = wrap_by_size();
  /// The parameters of a module that together have more bytes become several units, each of at most so many or of one
  /// parameter: what is whole at a time is bounded by it, however large the modules are. 0: never.
  TORCH_ARG(std::int64_t, max_unit_bytes) = std::int64_t{32} << 20;
  /// Parameters with fewer elements stay whole on every rank; their gradients are averaged.
  TORCH_ARG(std::int64_t, min_num_params) = 1000;
  /// When backward's next parameters are gathered.
  TORCH_ARG(BackwardPrefetch, backward_prefetch) = BackwardPrefetch::kPre;
  /// Whether forward's next parameters are gathered before they are used.
  TORCH_ARG(bool, forward_prefetch) = true;
  /// At most one unit is gathered ahead. Off: up to four are, where latency is long and memory is plenty.
  TORCH_ARG(bool, limit_all_gathers) = true;
  /// `parameters()` are slices of the model's parameters, one for each, for optimizers with groups by name. Off: one
  /// long vector for each unit, which is quicker.
  TORCH_ARG(bool, use_orig_params) = false;
  /// At the start every rank takes rank 0's parameters and buffers. Off: they are the same already, and you know it.
  TORCH_ARG(bool, init_sync) = true;
  /// Before each forward that builds a graph, and after each backward that averages, every rank takes rank 0's buffers.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Where the model trains. The units of a model on the CPU, also of one without bytes (DeferredInit), go there one by
  /// one: the device never holds more than its shards and a unit. Nullopt: where the model is.
  TORCH_ARG(std::optional<c10::Device>, device) = std::nullopt;
  /// Where ranks share memory, the parameters lie there once and nothing is gathered. Off: each rank has its own copy.
  TORCH_ARG(bool, shared_copy) = true;
  /// Where parameters come from when they are used, and where shards lie. Null: they lie with the ranks, which gather
  /// them, or read one copy; `shared_copy` applies only then.
  TORCH_ARG(MakeFlatSources, flat_sources) = nullptr;
  /// As in UnitPrecision, for all units. With it no parameter stays whole: `min_num_params` does not apply.
  TORCH_ARG(c10::ScalarType, param_dtype) = c10::ScalarType::Undefined;
  TORCH_ARG(c10::ScalarType, reduce_dtype) = c10::ScalarType::Undefined;
  TORCH_ARG(bool, keep_low_precision_grads) = false;
  /// The type of floating-point buffers.
  TORCH_ARG(c10::ScalarType, buffer_dtype) = c10::ScalarType::Undefined;
  /// For units that differ from those three, by the name of their module.
  TORCH_ARG(std::function<UnitPrecision(const std::string& unit)>, unit_precision) = nullptr;
  /// The same weights, bit for bit, on 1, 2, 4, 8, ... ranks, with every strategy and with DdpOptions::reproducible:
  /// docs/guides/reproducible.md. `parameters()` are slices, as with `use_orig_params`. Turns on LibTorch's
  /// deterministic algorithms and sets one thread, for the process and for good.
  TORCH_ARG(bool, reproducible) = false;
  /// Only with `reproducible`: the micro-batches of a step over all ranks, a power of two.
  TORCH_ARG(std::int64_t, micro_batches) = 0;

 public:
  /// Without `auto_wrap`, `device`, `flat_sources` and `unit_precision`, which have no text form.
  static const FieldList<FsdpOptions>& fields();
};

}  // namespace tessera
