#include "train/state/optimizer_kind.h"

#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace tessera::train {
namespace {

namespace to = torch::optim;

bool always(const OptimizerOptions& /*options*/) { return true; }

template <class State>
std::unique_ptr<OptimizerParamState> made() {
  return std::make_unique<State>();
}

/// `get` is a lambda from State& to a field of it.
template <class State, class Get>
auto field(Get get) {
  using Field = std::remove_reference_t<decltype(get(std::declval<State&>()))>;
  return std::function<Field&(OptimizerParamState&)>(
      [get](OptimizerParamState& state) -> Field& { return get(static_cast<State&>(state)); });
}

template <class Options, class Get>
std::function<bool(const OptimizerOptions&)> where(Get get) {
  return [get](const OptimizerOptions& options) { return get(static_cast<const Options&>(options)); };
}

OptimizerKind sgd() {
  using State = to::SGDParamState;
  return {"SGD",
          made<State>,
          nullptr,
          {{"momentum_buffer", field<State>([](State& s) -> at::Tensor& { return s.momentum_buffer(); }),
            where<to::SGDOptions>([](const auto& options) { return options.momentum() != 0; })}},
          /*begins_with_state=*/false};
}

/// Adam and AdamW differ in names alone.
template <class State, class Options>
OptimizerKind adam(const char* name) {
  return {name,
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"exp_avg", field<State>([](State& s) -> at::Tensor& { return s.exp_avg(); }), always},
           {"exp_avg_sq", field<State>([](State& s) -> at::Tensor& { return s.exp_avg_sq(); }), always},
           {"max_exp_avg_sq", field<State>([](State& s) -> at::Tensor& { return s.max_exp_avg_sq(); }),
            where<Options>([](const auto& options) { return options.amsgrad(); })}},
          /*begins_with_state=*/false};
}

OptimizerKind adagrad() {
  using State = to::AdagradParamState;
  return {"Adagrad",
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"sum", field<State>([](State& s) -> at::Tensor& { return s.sum(); }), always}},
          /*begins_with_state=*/true};
}

OptimizerKind rmsprop() {
  using State = to::RMSpropParamState;
  return {"RMSprop",
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"square_avg", field<State>([](State& s) -> at::Tensor& { return s.square_avg(); }), always},
           {"momentum_buffer", field<State>([](State& s) -> at::Tensor& { return s.momentum_buffer(); }),
            where<to::RMSpropOptions>([](const auto& options) { return options.momentum() > 0; })},
           {"grad_avg", field<State>([](State& s) -> at::Tensor& { return s.grad_avg(); }),
            where<to::RMSpropOptions>([](const auto& options) { return options.centered(); })}},
          /*begins_with_state=*/false};
}

}  // namespace

bool OptimizerKind::keeps_anything(const OptimizerOptions& options) const {
  return step || std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.is_kept(options); });
}

OptimizerKind kind_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const to::SGD*>(&optimizer)) return sgd();
  if (dynamic_cast<const to::Adam*>(&optimizer)) return adam<to::AdamParamState, to::AdamOptions>("Adam");
  if (dynamic_cast<const to::AdamW*>(&optimizer) || dynamic_cast<const optim::AdamW*>(&optimizer)) {
    return adam<to::AdamWParamState, to::AdamWOptions>("AdamW");
  }
  if (dynamic_cast<const to::Adagrad*>(&optimizer)) return adagrad();
  if (dynamic_cast<const to::RMSprop*>(&optimizer)) return rmsprop();
  throw ConfigError(std::string("a checkpoint does not know what an optimizer of type ") + typeid(optimizer).name() +
                    " keeps for its parameters. Known are SGD, Adam, AdamW, Adagrad and RMSprop, and what is derived "
                    "from them");
}

}  // namespace tessera::train
