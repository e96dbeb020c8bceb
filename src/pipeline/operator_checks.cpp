#include "pipeline/operator_checks.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera::pp {
namespace {

using intercept::OperatorCall;

/// Norms that write their running statistics, though their schemas do not say so: where these are among the arguments,
/// and where it is said whether they are written.
struct HiddenWrites {
  std::string_view op;
  std::size_t mean;
  std::size_t variance;
  std::optional<std::size_t> is_training;  // none: always
};
constexpr std::array<HiddenWrites, 7> kHiddenWrites{{{"aten::batch_norm", 3, 4, 5},
                                                     {"aten::native_batch_norm", 3, 4, 5},
                                                     {"aten::_batch_norm_impl_index", 3, 4, 5},
                                                     {"aten::cudnn_batch_norm", 3, 4, 5},
                                                     {"aten::miopen_batch_norm", 3, 4, 5},
                                                     {"aten::instance_norm", 3, 4, 5},
                                                     {"aten::batch_norm_update_stats", 1, 2, {}}}};

/// Null: it writes nothing that its schema does not tell.
const HiddenWrites* hidden_writes_of(OperatorCall& call) {
  const auto* const found =
      std::ranges::find_if(kHiddenWrites, [&](const HiddenWrites& one) { return one.op == call.name(); });
  if (found == kHiddenWrites.end()) return nullptr;
  return !found->is_training || call.argument(*found->is_training).toBool() ? &*found : nullptr;
}

/// Those that draw as many random numbers as the values say: without bytes nobody knows.
bool draws_by_values(OperatorCall& call) {
  static const std::set<std::string, std::less<>> kAlways{"aten::poisson", "aten::_standard_gamma", "aten::binomial",
                                                          "aten::multinomial", "aten::_sample_dirichlet"};
  static const std::set<std::string, std::less<>> kInTraining{"aten::rrelu", "aten::rrelu_", "aten::rrelu_with_noise",
                                                              "aten::rrelu_with_noise_",
                                                              "aten::rrelu_with_noise_functional"};
  if (kAlways.contains(call.name())) return true;
  if (!kInTraining.contains(call.name())) return false;
  const auto place = call.op().schema().argumentIndexWithName("training");
  return place && call.argument(static_cast<std::size_t>(*place)).toBool();
}

bool names_a_generator(OperatorCall& call) {
  for (std::size_t i = 0; i < call.num_arguments(); ++i) {
    if (call.argument(i).isGenerator()) return true;
  }
  return false;
}

}  // namespace

std::int64_t CrossingValue::num_bytes() const {
  return c10::multiply_integers(shape.sizes) * static_cast<std::int64_t>(c10::elementSize(shape.dtype));
}

OperatorChecks::OperatorChecks(StageModel& model, std::uint64_t run, const ForwardPlan* plan)
    : model_(model), run_(run), plan_(plan), is_dry_(plan == nullptr) {
  if (is_dry_) found_.crossing.resize(static_cast<std::size_t>(model.num_stages()) - 1);
}

Target OperatorChecks::target_of(OperatorCall& call) {
  Target target;
  bool is_of_parameters = true;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data) {
      is_of_parameters = is_of_parameters && tensor.dim() == 0;  // a factor, and no part of the batch
      if (!tensor.requires_grad() || !at::GradMode::is_enabled()) return {};
      throw ConfigError(call.name() +
                        " takes a tensor that requires a gradient and is none of the model's: each rank would have a "
                        "part of its gradient. Register it as a parameter before pipeline()" +
                        model_.where());
    }
    if (&data->model() != &model_) {
      throw ConfigError(call.name() + " takes a tensor of another pipeline" + model_.where());
    }
    if (!data->is_of_model() && data->run() != run_) {
      throw ConfigError(call.name() +
                        " takes a value that the forward of another micro-batch left, or another run of "
                        "this one: a model on several stages cannot keep values from one forward to the next" +
                        model_.where());
    }
    if (data->aliases().has_moved) {
      throw ConfigError(call.name() +
                        " takes a tensor that shares memory with one that a later stage has written to, and "
                        "the write is not seen here: write to a copy" +
                        model_.where());
    }
    const bool writes = call.writes(index);
    const bool is_constant =
        data->is_of_model() && model_.tensors[data->place()].is_buffer && !model_.tensors[data->place()].is_written;
    if (is_constant && !writes) return {};
    target.is_constant = false;
    target.stage = std::max(target.stage, data->stage());
    is_of_parameters = is_of_parameters && data->is_of_parameters() && !(writes && data->aliases().is_of_model);
    target.is_of_function = target.is_of_function || data->is_of_function() || intercept::has_own_history(tensor);
    for (const std::size_t place : data->parameters()) {
      if (std::ranges::find(target.parameters, place) == target.parameters.end()) target.parameters.push_back(place);
    }
    return {};
  });
  if (const HiddenWrites* const hidden = hidden_writes_of(call)) {
    for (const std::size_t index : {hidden->mean, hidden->variance}) {
      const StageDataPtr data = call.argument(index).isTensor() ? stage_data(call.tensor(index)) : StageDataPtr();
      if (!data) continue;
      target.is_constant = false;
      is_of_parameters = false;
      target.stage = std::max(target.stage, data->stage());
    }
  }
  if (!is_of_parameters) target.parameters.clear();
  std::ranges::sort(target.parameters);
  if (!target.is_constant && (draws_by_values(call) || names_a_generator(call))) {
    throw ConfigError(
        call.name() +
        " draws random numbers by the values of its argument, or from a generator of its own, so the ranks that "
        "have only the shape cannot draw as many: draw them outside of the model" +
        model_.where());
  }
  return target;
}

bool OperatorChecks::writes_unsaid(OperatorCall& call, std::size_t argument) {
  const HiddenWrites* const hidden = hidden_writes_of(call);
  return hidden && (argument == hidden->mean || argument == hidden->variance);
}

void OperatorChecks::write_to_buffer(std::size_t place, int stage, const OperatorCall& call) {
  StageTensor& buffer = model_.tensors[place];
  if (buffer.stage != stage) {
    throw ConfigError(call.name() + " of stage " + std::to_string(stage) + " writes to " + buffer.name +
                      ", which stage " + std::to_string(buffer.stage) +
                      " has: place it there, by PipelineOptions().place({\"" + buffer.name + ": " +
                      std::to_string(stage) + "\"})" + model_.where());
  }
  if (std::exchange(buffer.is_written, true)) return;
  if (!is_dry_) {
    throw ConfigError("the forward writes to the buffer " + buffer.name +
                      ", and did not when it was tried without bytes: say so by PipelineOptions().dynamic(true)" +
                      model_.where());
  }
  finds_new_writes_ = true;
}

void OperatorChecks::check_writes(OperatorCall& call, int stage) {
  if (const HiddenWrites* const hidden = hidden_writes_of(call)) {
    for (const std::size_t index : {hidden->mean, hidden->variance}) {
      if (!call.argument(index).isTensor() || !call.tensor(index).defined()) continue;
      const StageDataPtr data = stage_data(call.tensor(index));
      if (data && data->is_of_model()) {
        write_to_buffer(data->place(), stage, call);
      } else {
        throw ConfigError(call.name() + " of stage " + std::to_string(stage) +
                          " writes statistics to a tensor that is no buffer of the model: register it as one" +
                          model_.where());
      }
    }
  }
  if (!call.writes_any()) return;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    if (!call.writes(index)) return {};
    const StageDataPtr data = stage_data(tensor);
    if (!data) {
      throw ConfigError(call.name() + " writes a value of stage " + std::to_string(stage) +
                        " to a tensor that every rank has, and the other ranks do not have the value: use an operator "
                        "that returns a new tensor, or begin with one that the model has computed, as by new_zeros() "
                        "followed by + of a value" +
                        model_.where());
    }
    if (data->aliases().is_of_model && !data->is_of_model()) {
      throw ConfigError(call.name() +
                        " writes to a view of a parameter or buffer in the forward: let it write to all of it" +
                        model_.where());
    }
    if (data->is_of_model()) {
      const StageTensor& one = model_.tensors[data->place()];
      if (one.is_buffer) {
        write_to_buffer(data->place(), stage, call);
      } else {
        throw ConfigError(
            call.name() + " writes to the parameter " + one.name +
            " in the forward, between the forwards and backwards of other micro-batches: write to it between "
            "steps" +
            model_.where());
      }
    } else if (data->aliases().last_reader > stage) {
      throw ConfigError(call.name() + " of stage " + std::to_string(stage) + " writes to a tensor that stage " +
                        std::to_string(data->aliases().last_reader) +
                        " has taken already, where the write would not be seen: write to a copy" + model_.where());
    }
    return {};
  });
}

void OperatorChecks::note_readers(OperatorCall& call, int stage) {
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data) return {};
    data->aliases().last_reader = data->is_of_model() ? -1 : std::max(data->aliases().last_reader, stage);
    if (is_dry_) note_crossing(tensor, *data, stage);
    return {};
  });
}

void OperatorChecks::note_crossing(const at::Tensor& tensor, const StageData& data, int stage) {
  const int rank = model_.rank_of_stage[static_cast<std::size_t>(stage)];
  for (const std::size_t place : data.parameters()) {
    const StageTensor& one = model_.tensors[place];
    if (model_.rank_of_stage[static_cast<std::size_t>(one.stage)] != rank) found_.shared[place].insert(rank);
    note_reader(place, stage);
    if (!data.is_of_function() && !intercept::has_own_history(tensor)) continue;
    functions_[place].insert(stage);
    if (functions_[place].size() < 2) continue;
    throw ConfigError(
        "a custom function of " + one.name +
        " alone is used on several stages, and its backward would see parts of a gradient: use it on one stage, or "
        "compute it from the parameter by operators" +
        model_.where());
  }
  if (data.is_of_model() && !data.is_of_parameters()) note_reader(data.place(), stage);
  if (data.is_of_model() || data.is_of_parameters()) return;
  for (int from = data.stage(); from < stage; ++from) {
    auto& values = found_.crossing[static_cast<std::size_t>(from)];
    const auto known = std::ranges::find(values, data.value(), &CrossingValue::value);
    if (known != values.end()) {
      // data() of a value is the same value, without a gradient.
      known->shape.requires_grad = known->shape.requires_grad || tensor.requires_grad();
      continue;
    }
    // A tensor without gaps keeps its order in memory on the way.
    Shape shape = shape_of(tensor);
    values.push_back({data.value(), std::move(shape), maker_of(data.value())});
  }
}

void OperatorChecks::note_reader(std::size_t place, int stage) {
  std::set<int>& readers = readers_[place];
  readers.insert(stage);
  model_.tensors[place].readers.insert(stage);
  const bool is_elsewhere = readers.size() > 1 || *readers.begin() != model_.tensors[place].stage;
  if (is_elsewhere && !model_.tensors[place].is_buffer) found_.spread.insert(place);
}

void OperatorChecks::note_operator(OperatorCall& call, int stage) {
  ++num_operators_;
  digest_.add(call.name());
  digest_.add(static_cast<std::uint64_t>(stage));
  call.for_each_tensor([this](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (data) digest_.add(static_cast<std::uint64_t>(data->value()) * 2 + (data->is_of_model() ? 1 : 0));
    return {};
  });
}

void OperatorChecks::note_value(const Shape& shape) {
  const bool requires_grad = at::GradMode::is_enabled() && shape.requires_grad;
  digest_.add(static_cast<std::uint64_t>(shape.dtype) * 2 + (requires_grad ? 1 : 0));
  for (const std::int64_t size : shape.sizes) digest_.add(static_cast<std::uint64_t>(size));
}

void OperatorChecks::note_maker(std::int64_t value, const OperatorCall& call) {
  if (is_dry_) makers_[value] = call.name();
}

std::string OperatorChecks::maker_of(std::int64_t value) const {
  const auto found = makers_.find(value);
  return found == makers_.end() ? std::string() : found->second;
}

ForwardPlan OperatorChecks::take_found() {
  for (auto& values : found_.crossing) std::ranges::sort(values, {}, &CrossingValue::value);
  found_.digest = digest_.value();
  found_.num_operators = num_operators_;
  return std::move(found_);
}

void OperatorChecks::require_same_way(const ForwardPlan& plan) const {
  if (digest_.value() == plan.digest && num_operators_ == plan.num_operators) return;
  throw ConfigError(
      "the forward runs other operators than the one that was tried without bytes for a micro-batch of these "
      "shapes (" +
      std::to_string(num_operators_) + ", and " + std::to_string(plan.num_operators) +
      " then), so other values may cross: if it depends on more than the shapes of the batch, as on random "
      "numbers or on a count of steps, say so by PipelineOptions().dynamic(true)" +
      model_.where());
}

}  // namespace tessera::pp
