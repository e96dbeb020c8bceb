#include "pipeline/stage_model.h"

#include <tessera/core/error.h>
#include <tessera/intercept/operator_call.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>

#include <functional>
#include <set>
#include <utility>

#include "pipeline/chunk_run.h"

namespace tessera::pp {
namespace {

using intercept::OperatorCall;

/// A parameter of another rank detached, or a tensor like it, as the state that an optimizer begins with: without bytes
/// too. False: the operator is another one.
bool call_on_nothing(OperatorCall& call) {
  static const std::set<std::string, std::less<>> kLike{"aten::detach", "aten::clone", "aten::empty_like",
                                                        "aten::zeros_like"};
  if (!kLike.contains(call.name())) return false;
  const at::Tensor tensor = call.tensor(0);
  const StageDataPtr data = stage_data(tensor);
  if (data->is_here() || !intercept::holds_part(tensor)) return false;
  call.argument(0) = c10::IValue(intercept::held_part(tensor));
  call.run();
  call.return_value(intercept::make_part(call.result(0).toTensor(), data, tensor.sizes(), tensor.strides()));
  return true;
}

/// Operators outside of a forward: on tensors of the model, and in backward, where they take what a forward has left.
void call_outside(OperatorCall& call) {
  if (call_on_nothing(call)) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // what acts, and what was written instead
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data) return {};
    if (!data->is_alive()) {
      if (data->is_here()) return intercept::inner_of(tensor);
      throw ConfigError(call.name() +
                        " takes a tensor of a pipeline that is gone: keep the Pipeline as long as its model");
    }
    const StageModel& model = data->model();
    if (data->is_of_model() && !data->is_here() && !call.writes(index)) {
      // A custom function has saved it for its backward.
      const auto copy = model.shared.find(data->place());
      if (copy != model.shared.end()) return copy->second;
    }
    if (!data->is_here()) {
      const std::string what = data->is_of_model() ? model.tensors[data->place()].name : "a value of the forward";
      throw ConfigError(call.name() + " takes " + what + ", which lies on stage " + std::to_string(data->stage()) +
                        " of the pipeline, on another rank than this one" + model.where() +
                        ": run the model by step() or evaluate() of its Pipeline, or inside gather()");
    }
    at::Tensor local = call.writes(index) ? intercept::inner_for_write(tensor) : intercept::inner_of(tensor);
    if (call.writes(index)) written.emplace_back(tensor, local);
    return local;
  });
  call.run();
  call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
    for (const auto& [tensor, local] : written) {
      if (result.is_same(local)) return tensor;
    }
    return {};
  });
}

class StageKind : public intercept::ActingKind {
 public:
  std::string name() const override { return "tensor of a pipeline"; }
  int level() const override { return 20; }  // around those of tensor parallelism

  void call(OperatorCall& call) const override {
    if (ChunkRun* const run = ChunkRun::current()) {
      run->call(call);
    } else {
      call_outside(call);
    }
  }

  at::Tensor inner_gradient(const at::Tensor& gradient, const intercept::ActingData& /*data*/) const override {
    const StageDataPtr its = stage_data(gradient);
    if (!its) return gradient;
    if (!its->is_here()) throw InternalError("a gradient without bytes has reached a backward pass");
    return intercept::inner_of(gradient);
  }
  at::Tensor outer_gradient(const at::Tensor& gradient, const intercept::ActingDataPtr& /*data*/) const override {
    return gradient;
  }
  // Kernels of meta tensors choose other strides than those of a device.
  bool hides_contiguity() const override { return true; }
  void require_hookable(const intercept::ActingData& data) const override {
    const auto& its = static_cast<const StageData&>(data);
    if (!its.is_of_parameters() || its.is_of_model()) return;
    throw ConfigError(
        "a hook is put on what is computed from parameters alone, which each rank computes for itself: put it on "
        "the parameter, or on a value of the model" +
        its.model().where());
  }
  bool is_elsewhere(const intercept::ActingData& data) const override {
    const auto& its = static_cast<const StageData&>(data);
    return its.is_of_model() && !its.is_here();
  }
  bool has_history(const intercept::ActingData& data) const override {
    return static_cast<const StageData&>(data).bytes() == Bytes::kComputed;
  }
};

}  // namespace

const intercept::ActingKind& stage_kind() {
  static const StageKind kind;
  return kind;
}

StageData::StageData(const StageModel& model, int stage, std::int64_t value, std::uint64_t run, Bytes bytes,
                     c10::intrusive_ptr<Aliases> aliases, std::vector<std::size_t> parameters, bool is_of_function)
    : ActingData(stage_kind()),
      model_(&model),
      alive_(model.weak_from_this()),
      stage_(stage),
      value_(value),
      run_(run),
      bytes_(bytes),
      aliases_(std::move(aliases)),
      parameters_(std::move(parameters)),
      is_of_function_(is_of_function) {}

StageData::StageData(const StageModel& model, std::size_t place)
    : StageData(
          model, model.tensors[place].stage, static_cast<std::int64_t>(place), 0,
          model.tensors[place].is_buffer || model.is_here(model.tensors[place].stage) ? Bytes::kComputed : Bytes::kNone,
          c10::make_intrusive<Aliases>(),
          model.tensors[place].is_buffer ? std::vector<std::size_t>() : std::vector{place}) {
  aliases_->is_of_model = true;
}

StageDataPtr stage_data(const at::Tensor& tensor) {
  auto data = intercept::acting_data(tensor, stage_kind());
  return data ? c10::static_intrusive_pointer_cast<StageData>(std::move(data)) : StageDataPtr();
}

ActingModel::ActingModel(StageModel& model) : model_(model) {
  if (model.num_acting++ > 0) return;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const at::Tensor& tensor = model.tensors[i].tensor;
    if (!stage_data(tensor)) intercept::mark_acting(tensor, c10::make_intrusive<StageData>(model, i));
  }
}

ActingModel::~ActingModel() {
  if (--model_.num_acting > 0) return;
  for (const StageTensor& one : model_.tensors) {
    if (!intercept::is_elsewhere(one.tensor)) intercept::unmark_acting(one.tensor);
  }
}

void send_away(const StageModel& model, std::size_t place) {
  const StageTensor& one = model.tensors[place];
  const std::vector<std::int64_t> sizes = one.tensor.sizes().vec();
  const std::vector<std::int64_t> strides = one.tensor.strides().vec();
  std::vector<std::int64_t> none = sizes;
  if (none.empty()) none.push_back(0);
  none.front() = 0;
  intercept::mark_part(one.tensor, at::empty(none, one.tensor.options().requires_grad(false)),
                       c10::make_intrusive<StageData>(model, place), sizes, strides);
  // Who takes it for a whole tensor shall be refused.
  if (!sizes.empty()) set_global_slice(one.tensor, Slice::whole(sizes).narrow(0, {0, 0}));
}

void bring_back(const StageTensor& one, const at::Tensor& held) {
  intercept::unmark_part(one.tensor, held);
  // A single number has no slice that is empty, so none is noted of it.
  if (one.tensor.dim() > 0) set_global_slice(one.tensor, one.slice);
}

at::Tensor memory_for(const StageTensor& one) {
  return at::empty_strided(one.held_sizes, one.held_strides, one.tensor.options().requires_grad(false));
}

at::Tensor as_held(const StageTensor& one, const at::Tensor& held) {
  // Its own mark is the pipeline's; below it is that of tensor parallelism.
  const auto cut =
      stage_data(one.tensor) ? intercept::acting_data_below(one.tensor) : intercept::acting_data(one.tensor);
  return cut ? intercept::make_part(held, cut, one.tensor.sizes(), one.tensor.strides()) : held;
}

}  // namespace tessera::pp
