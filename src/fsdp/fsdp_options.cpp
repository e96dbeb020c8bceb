#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_options.h>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

/// "torch::nn::LinearImpl" and "Linear" are one name.
std::string short_name(std::string name) {
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

WrapPolicy::WrapPolicy(std::string text, Decide decide) : text_(std::move(text)), decide_(std::move(decide)) {
  if (!decide_) throw ConfigError("a wrap policy needs a function that decides; \"" + text_ + "\" has none");
}

bool WrapPolicy::wraps(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements) const {
  return decide_(module, name, num_elements);
}

WrapPolicy wrap_by_size(std::int64_t min_elements) {
  if (min_elements < 1) {
    throw ConfigError("wrap_by_size needs a size above 0, found " + std::to_string(min_elements));
  }
  return {"by size, " + std::to_string(min_elements),
          [min_elements](const torch::nn::Module&, const std::string&, std::int64_t num_elements) {
            return num_elements >= min_elements;
          }};
}

WrapPolicy wrap_by_type(const std::vector<std::string>& type_names) {
  if (type_names.empty()) throw ConfigError("wrap_by_type needs the name of a module's type, as \"Linear\"");
  std::vector<std::string> shortened;
  for (const auto& name : type_names) shortened.push_back(short_name(name));
  return {"by type, " + joined(shortened),
          [shortened](const torch::nn::Module& module, const std::string&, std::int64_t) {
            return std::find(shortened.begin(), shortened.end(), short_name(module.name())) != shortened.end();
          }};
}

WrapPolicy wrap_none() {
  return {"none", [](const torch::nn::Module&, const std::string&, std::int64_t) { return false; }};
}

WrapPolicy detail::wrap_by_type_info(const std::vector<const std::type_info*>& types) {
  std::vector<std::string> names;
  for (const auto* type : types) names.push_back(c10::demangle(type->name()));
  return {"by type, " + joined(names), [types](const torch::nn::Module& module, const std::string&, std::int64_t) {
            return std::any_of(types.begin(), types.end(), [&](const auto* type) { return typeid(module) == *type; });
          }};
}

namespace {

const std::vector<std::pair<std::string, c10::ScalarType>>& dtypes() {
  static const std::vector<std::pair<std::string, c10::ScalarType>> names{{"same", c10::ScalarType::Undefined},
                                                                          {"float64", c10::ScalarType::Double},
                                                                          {"float32", c10::ScalarType::Float},
                                                                          {"bfloat16", c10::ScalarType::BFloat16},
                                                                          {"float16", c10::ScalarType::Half}};
  return names;
}

}  // namespace

const FieldList<FsdpOptions>& FsdpOptions::fields() {
  static const FieldList<FsdpOptions> list =
      FieldList<FsdpOptions>("fsdp")
          .add_enum("strategy", &FsdpOptions::strategy_,
                    {{"full_shard", ShardingStrategy::kFullShard},
                     {"shard_grad_op", ShardingStrategy::kShardGradOp},
                     {"zero1", ShardingStrategy::kZero1},
                     {"no_shard", ShardingStrategy::kNoShard},
                     {"hybrid_shard", ShardingStrategy::kHybridShard}},
                    "What is sharded.")
          .add("max_unit_bytes", &FsdpOptions::max_unit_bytes_,
               "A module with more bytes of parameters becomes several units; 0: never.")
          .add("min_num_params", &FsdpOptions::min_num_params_,
               "Parameters with fewer elements stay whole on every rank.")
          .add_enum(
              "backward_prefetch", &FsdpOptions::backward_prefetch_,
              {{"pre", BackwardPrefetch::kPre}, {"post", BackwardPrefetch::kPost}, {"none", BackwardPrefetch::kNone}},
              "When backward's next parameters are gathered.")
          .add("forward_prefetch", &FsdpOptions::forward_prefetch_,
               "Whether forward's next parameters are gathered before they are used.")
          .add("limit_all_gathers", &FsdpOptions::limit_all_gathers_, "At most one unit is gathered ahead.")
          .add("use_orig_params", &FsdpOptions::use_orig_params_,
               "The optimizer's parameters are slices of the model's, one for each.")
          .add("init_sync", &FsdpOptions::init_sync_, "At the start every rank takes rank 0's parameters and buffers.")
          .add("broadcast_buffers", &FsdpOptions::broadcast_buffers_,
               "Before each forward in training, and after backward, every rank takes rank 0's buffers.")
          .add("shared_copy", &FsdpOptions::shared_copy_,
               "Where ranks share memory, the parameters lie there once and nothing is gathered.")
          .add_enum("param_dtype", &FsdpOptions::param_dtype_, dtypes(),
                    "In which parameters are gathered and used; shards keep their own type.")
          .add_enum("reduce_dtype", &FsdpOptions::reduce_dtype_, dtypes(), "In which gradients are averaged.")
          .add("keep_low_precision_grads", &FsdpOptions::keep_low_precision_grads_,
               "The gradients of shards stay in `reduce_dtype`.")
          .add_enum("buffer_dtype", &FsdpOptions::buffer_dtype_, dtypes(), "The type of floating-point buffers.")
          .add("reproducible", &FsdpOptions::reproducible_,
               "The same weights, bit for bit, on any power of two of ranks and with every strategy.")
          .add("micro_batches", &FsdpOptions::micro_batches_,
               "With reproducible: the micro-batches of a step over all ranks, a power of two.");
  return list;
}

}  // namespace tessera
