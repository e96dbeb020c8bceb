#include "pipeline/chunk_run.h"

#include <tessera/core/error.h>
#include <tessera/intercept/no_backward.h>
#include <tessera/intercept/random_state.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "pipeline/deferring_products.h"

namespace tessera::pp {
namespace {

using intercept::OperatorCall;

thread_local ChunkRun* current_run = nullptr;

std::uint64_t next_run_number() {
  static std::atomic<std::uint64_t> number{0};
  return ++number;
}

/// Takes a gradient out of a backward pass.
class Arrival : public torch::autograd::Node {
 public:
  explicit Arrival(std::shared_ptr<at::Tensor> gradient) : gradient_(std::move(gradient)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    *gradient_ = std::move(gradients.front());
    return {};
  }
  std::string name() const override { return "tessera::Arrival"; }

 private:
  std::shared_ptr<at::Tensor> gradient_;
};

}  // namespace

at::Tensor Arrivals::enter(const at::Tensor& bytes) {
  gradients_.push_back(std::make_shared<at::Tensor>());
  at::Tensor entered = bytes.detach();
  auto node = c10::make_intrusive<Arrival>(gradients_.back());
  torch::autograd::create_gradient_edge(entered, std::move(node));
  return entered;
}

std::vector<at::Tensor> Arrivals::take() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> taken;
  for (const auto& gradient : gradients_) {
    // That of a value which this stage alone has cut would be cut too; the stage before it has a whole one.
    taken.push_back(gradient->defined() ? intercept::plain_of(*gradient) : at::Tensor());
  }
  gradients_.clear();
  return taken;
}

ChunkRun* ChunkRun::current() { return current_run; }

namespace {

/// Operators are none of the forward as long as it lives. While one of it runs on this stage, those who share the model
/// along another axis may notice a use, and take buffers from other ranks.
class NoRun {
 public:
  NoRun() : before_(std::exchange(current_run, nullptr)) {}
  ~NoRun() { current_run = before_; }
  NoRun(const NoRun&) = delete;
  NoRun& operator=(const NoRun&) = delete;

 private:
  ChunkRun* before_;
};

}  // namespace

ChunkRun::ChunkRun(StageModel& model, int stage, std::uint64_t number, const ForwardPlan* plan)
    : model_(model),
      stage_(stage),
      number_(number),
      checks_(model, number, plan),
      outer_(std::exchange(current_run, this)),
      plan_(plan) {}

ChunkRun::~ChunkRun() { current_run = outer_; }

class ChunkRun::Point : public intercept::RunPoint {
 public:
  explicit Point(const ChunkRun& run)
      : model_(run.model_),
        stage_(run.stage_),
        number_(run.number_),
        next_value_(run.next_value_),
        plan_(run.plan_),
        deferred_(run.deferred_),
        received_(run.received_) {}
  std::unique_ptr<intercept::ResumedRun> resume() const override;

 private:
  friend class Resumed;

  StageModel& model_;
  int stage_;
  std::uint64_t number_;
  std::int64_t next_value_;
  const ForwardPlan* plan_;
  std::shared_ptr<intercept::DeferredGradients> deferred_;
  std::shared_ptr<const Received> received_;
};

/// The run goes on from there.
class ChunkRun::Resumed : public intercept::ResumedRun {
 public:
  explicit Resumed(const Point& from)
      : run_(from.model_, from.stage_, from.number_, from.plan_), acting_(from.model_), scope_(run_) {
    run_.next_value_ = from.next_value_;
    run_.deferred_ = from.deferred_;
    run_.received_ = from.received_;
  }

 private:
  ChunkRun run_;
  ActingModel acting_;
  intercept::RunScope scope_;
};

std::unique_ptr<intercept::ResumedRun> ChunkRun::Point::resume() const { return std::make_unique<Resumed>(*this); }

std::shared_ptr<const intercept::RunPoint> ChunkRun::point() const { return std::make_shared<Point>(*this); }

at::Tensor ChunkRun::run_forward(const Forward& forward) {
  if (outer_) throw ConfigError("a step of a pipeline is asked for inside the forward of one" + model_.where());
  const intercept::RunScope scope(*this);
  const ActingModel acting(model_);
  const intercept::NoBackward no_backward(
      "a backward pass is asked for inside the forward of a pipeline, where most values have no bytes: step() runs the "
      "backward passes of its micro-batches itself" +
      model_.where());
  const std::vector<std::uint32_t> before = versions_of_buffers();
  at::Tensor loss = forward();
  const std::vector<std::uint32_t> after = versions_of_buffers();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i] || model_.tensors[i].is_written) continue;
    throw ConfigError("the forward writes to a view of the buffer " + model_.tensors[i].name +
                      ", which every rank has: let it write to the buffer itself" + model_.where());
  }
  return loss;
}

/// What is computed from buffers that nobody writes is no value of a stage, and nor are views of them.
std::vector<std::uint32_t> ChunkRun::versions_of_buffers() const {
  std::vector<std::uint32_t> versions;
  for (const StageTensor& one : model_.tensors) {
    const bool is_counted = one.is_buffer && !one.tensor.is_inference();
    versions.push_back(is_counted ? static_cast<std::uint32_t>(one.tensor._version()) : 0);
  }
  return versions;
}

ForwardPlan ChunkRun::plan(StageModel& model, const Forward& forward) {
  const intercept::RandomState before = intercept::RandomState::now(model.device);
  // Which buffers are written is known when the forward has ended, and decides what crosses.
  for (bool is_final = false;;) {
    ChunkRun run(model, kDry, next_run_number(), nullptr);
    const at::Tensor loss = run.run_forward(forward);
    const bool draws = !(before == intercept::RandomState::now(model.device));
    before.restore();
    if (run.checks_.finds_new_writes() && !is_final) {
      is_final = true;
      continue;
    }
    const StageDataPtr data = loss.defined() ? stage_data(loss) : StageDataPtr();
    if (data && data->is_of_parameters()) {
      throw ConfigError("the loss is computed from parameters alone, and not from the batch" + model.where());
    }
    if (!data || loss.numel() != 1) {
      throw ConfigError("the forward of a pipeline must return the loss, one number that depends on the model; found " +
                        (!loss.defined() ? std::string("an undefined tensor")
                                         : std::to_string(loss.numel()) + " numbers" +
                                               (data ? "" : " that no parameter has part in")) +
                        model.where());
    }
    if (data->stage() != model.num_stages() - 1) {
      throw ConfigError("the loss is a value of stage " + std::to_string(data->stage()) + ", and the pipeline has " +
                        std::to_string(model.num_stages()) +
                        " stages: no operator takes what the last ones have. Choose another cut" + model.where());
    }
    for (const StageTensor& one : model.tensors) {
      if (!one.is_buffer || !one.is_written) continue;
      for (const int reader : one.readers) {
        if (reader == one.stage) continue;
        throw ConfigError("the forward writes to the buffer " + one.name + " of stage " + std::to_string(one.stage) +
                          ", and stage " + std::to_string(reader) +
                          " reads it when other micro-batches have written to it: cut the model elsewhere, or place "
                          "the module with that stage" +
                          model.where());
      }
    }
    ForwardPlan found = run.checks_.take_found();
    found.loss = shape_of(loss);
    // As a mean of losses is.
    if (c10::isIntegralType(found.loss.dtype, /*includeBool=*/true)) {
      found.loss.dtype = c10::get_default_dtype_as_scalartype();
    }
    found.draws = draws;
    return found;
  }
}

ChunkRun::Result ChunkRun::compute(StageModel& model, const ForwardPlan& plan, int stage,
                                   const std::vector<at::Tensor>& received,
                                   std::shared_ptr<intercept::DeferredGradients> deferred, const Forward& forward) {
  ChunkRun run(model, stage, next_run_number(), &plan);
  run.deferred_ = std::move(deferred);
  if (stage > 0) {
    const auto& values = plan.crossing[static_cast<std::size_t>(stage) - 1];
    Received by_value;
    for (std::size_t i = 0; i < values.size(); ++i) by_value.emplace(values[i].value, received[i]);
    run.received_ = std::make_shared<const Received>(std::move(by_value));
  }
  const bool is_last = stage == model.num_stages() - 1;
  if (!is_last) {
    for (const CrossingValue& one : plan.crossing[static_cast<std::size_t>(stage)]) run.outputs_[one.value] = {};
  }
  const at::Tensor loss = run.run_forward(forward);
  run.checks_.require_same_way(plan);
  Result result;
  if (is_last) result.loss = intercept::plain_of(intercept::inner_of(loss));
  if (is_last) return result;
  for (const CrossingValue& one : plan.crossing[static_cast<std::size_t>(stage)]) {
    const auto& captured = run.outputs_[one.value];
    if (!captured) throw InternalError("a value that crosses to the next stage was not seen (" + one.op + ")");
    if (!captured->tensor.is_inference() && captured->tensor._version() != captured->version) {
      throw InternalError("the result of " + one.op + " was written to after a later stage had taken it");
    }
    result.outputs.push_back(captured->tensor);
  }
  return result;
}

void ChunkRun::call(OperatorCall& call) {
  const Target target = checks_.target_of(call);
  if (target.is_constant) {
    call.for_each_tensor([](std::size_t, const at::Tensor& tensor) {
      return stage_data(tensor) ? intercept::inner_of(tensor) : at::Tensor();
    });
    return call.run();
  }
  const bool is_of_parameters = !target.parameters.empty();
  checks_.check_writes(call, target.stage);
  if (!is_of_parameters) checks_.note_readers(call, target.stage);
  if (!is_of_parameters && stage_ != kDry) capture(call, target.stage);
  checks_.note_operator(call, target.stage);
  if (call.name() == "aten::equal" && answer_equal(call, target)) return;
  if (call.name() == "aten::detach" && detach_what_is_here(call, target)) return;
  if (is_of_parameters ? stage_ != kDry && has_all(call) : target.stage == stage_) {
    compute_here(call, target);
  } else {
    imagine(call, target);
  }
}

/// Whether this rank has what an operator of parameters takes.
bool ChunkRun::has_all(OperatorCall& call) {
  bool has = true;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data || data->is_here()) return {};
    has = has && data->is_of_model() && model_.shared.contains(data->place());
    return {};
  });
  return has;
}

void ChunkRun::capture(OperatorCall& call, int stage) {
  if (stage <= stage_) return;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data || data->is_of_model() || data->is_of_parameters() || !data->is_here()) return {};
    const auto found = outputs_.find(data->value());
    if (found == outputs_.end()) return {};
    // Stages know nothing of how others cut values.
    at::Tensor inner = intercept::plain_of(intercept::inner_of(tensor));
    if (found->second && (found->second->tensor.requires_grad() || !inner.requires_grad())) return {};
    const std::uint32_t version = inner.is_inference() ? 0 : static_cast<std::uint32_t>(inner._version());
    found->second = Captured{std::move(inner), version};
    return {};
  });
}

at::Tensor ChunkRun::local_parameter(const at::Tensor& tensor, const StageData& data) {
  if (data.is_here()) return intercept::inner_of(tensor);
  const auto found = model_.shared.find(data.place());
  if (found != model_.shared.end()) return tensor.requires_grad() ? found->second : found->second.detach();
  checks_.require_same_way(*plan_);
  throw InternalError("stage " + std::to_string(stage_) + " takes " + model_.tensors[data.place()].name + " of stage " +
                      std::to_string(data.stage()) + ", which was not sent");
}

at::Tensor ChunkRun::local_of(const at::Tensor& tensor, const StageData& data, int stage) {
  if (data.is_of_model() && model_.tensors[data.place()].is_written) {
    // The next micro-batch's forward writes to it before this one's backward, which may need what it is now.
    const at::Tensor buffer = local_parameter(tensor, data);
    return at::GradMode::is_enabled() ? buffer.clone() : buffer;
  }
  if (data.is_of_model()) return local_parameter(tensor, data);
  if (data.is_here()) return intercept::inner_of(tensor);
  checks_.require_same_way(*plan_);
  throw InternalError("an operator of stage " + std::to_string(stage) + " takes a value of stage " +
                      std::to_string(data.stage()) + " that did not arrive");
}

at::Tensor ChunkRun::value_of(at::Tensor inner, const Target& target, Bytes bytes, c10::intrusive_ptr<Aliases> aliases,
                              at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (!aliases) aliases = c10::make_intrusive<Aliases>();
  auto data = c10::make_intrusive<StageData>(model_, target.stage, next_value_++, number_, bytes, std::move(aliases),
                                             target.parameters, !target.parameters.empty() && target.is_of_function);
  return intercept::make_acting(std::move(inner), std::move(data), sizes, strides);
}

namespace {

/// Arguments that the operator writes to, which act.
struct WrittenTensor {
  at::Tensor acting;
  at::Tensor local;
};

}  // namespace

void ChunkRun::compute_here(OperatorCall& call, const Target& target) {
  const int stage = target.stage;
  std::vector<std::pair<at::Tensor, at::Tensor>> taken;  // what acts, and what the operator takes instead
  std::vector<WrittenTensor> written;
  const auto local_for = [&](std::size_t index, const at::Tensor& tensor, const StageDataPtr& data) -> at::Tensor {
    if (data->is_of_model() && checks_.writes_unsaid(call, index)) return intercept::inner_of(tensor);
    if (!call.writes(index)) return local_of(tensor, *data, stage);
    if (!data->is_here()) return local_of(tensor, *data, stage);  // says what is wrong
    written.push_back({tensor, intercept::inner_for_write(tensor)});
    // What has arrived stays as it is: recomputation takes it again.
    if (!data->is_of_model() && data->stage() != stage) written.back().local = written.back().local.clone();
    return written.back().local;
  };
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    const StageDataPtr data = stage_data(tensor);
    if (!data) return {};
    at::Tensor local = local_for(index, tensor, data);
    taken.emplace_back(tensor, local);
    return local;
  });
  const auto aliases_of = [&taken](const at::Tensor& result) -> c10::intrusive_ptr<Aliases> {
    const at::Tensor memory = intercept::innermost(result);
    if (!memory.has_storage()) return {};
    for (const auto& [acting, local] : taken) {
      const at::Tensor its = intercept::innermost(local);
      if (its.has_storage() && its.is_alias_of(memory)) return stage_data(acting)->shared_aliases();
    }
    return {};
  };
  {
    const intercept::UseReports uses(true);
    const NoRun outside;
    if (!deferred_ || !run_deferring(call, deferred_)) call.run();
  }
  for (const WrittenTensor& one : written) {
    const StageDataPtr data = stage_data(one.acting);
    if (data->is_of_model()) continue;
    auto its = data->shared_aliases();
    if (data->stage() != stage) {
      its->has_moved = true;
      its = nullptr;
    }
    checks_.note_value(shape_of(one.local));
    intercept::become(one.acting, value_of(one.local, target, Bytes::kComputed, std::move(its), one.local.sizes(),
                                           one.local.strides()));
  }
  call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
    for (const WrittenTensor& one : written) {
      if (result.is_same(one.local)) return one.acting;
    }
    if (stage_data(result)) return {};
    checks_.note_value(shape_of(result));
    return value_of(result, target, Bytes::kComputed, aliases_of(result), result.sizes(), result.strides());
  });
}

/// Whether two tensors are equal is asked by LibTorch's attention, of tensors that are the same or have nothing to do
/// with each other. Without bytes the answer for others is no; the rank that has them looks, and refuses a yes.
bool ChunkRun::answer_equal(OperatorCall& call, const Target& target) {
  const int stage = target.stage;
  const at::Tensor one = call.tensor(0);
  const at::Tensor other = call.tensor(1);
  const bool is_same = one.is_same(other);
  if (!is_same && stage == stage_ && one.sizes() == other.sizes()) {
    compute_here(call, target);
    if (!call.result(0).toBool()) return true;
    throw ConfigError("the forward asks whether two tensors of stage " + std::to_string(stage) +
                      " are equal. They are, and the ranks that have only their shape have gone on as if not" +
                      model_.where());
  }
  call.return_value(is_same);
  return true;
}

/// What has arrived stays here when it is detached, as recompute() does with its inputs.
bool ChunkRun::detach_what_is_here(OperatorCall& call, const Target& target) {
  const at::Tensor tensor = call.tensor(0);
  const StageDataPtr data = stage_data(tensor);
  if (target.stage == stage_ || !data->is_here() || data->is_of_model() || received_->contains(next_value_))
    return false;
  at::Tensor inner = intercept::inner_of(tensor).detach();
  checks_.note_value(shape_of(inner));
  call.return_value(
      value_of(std::move(inner), target, Bytes::kComputed, data->shared_aliases(), tensor.sizes(), tensor.strides()));
  return true;
}

/// Gradients that reach a value which did not cross, as a custom function may give to an argument that its forward does
/// not read.
class ChunkRun::LostGradients : public torch::autograd::Node {
 public:
  explicit LostGradients(std::string where) : where_(std::move(where)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    for (const at::Tensor& one : gradients) {
      if (!one.defined()) continue;
      throw ConfigError(
          "a gradient reaches a value of another stage that no operator of this one has taken: a custom "
          "function gives a gradient to an argument that its forward does not use. Let the forward use it, "
          "or cut the model elsewhere" +
          where_);
    }
    return {};
  }
  std::string name() const override { return "tessera::LostGradients"; }

 private:
  std::string where_;
};

c10::intrusive_ptr<torch::autograd::Node> ChunkRun::lost_gradients() {
  if (!lost_gradients_) lost_gradients_ = c10::make_intrusive<LostGradients>(model_.where());
  return lost_gradients_;
}

at::Tensor ChunkRun::ghost_of(const Shape& shape, const Target& target, c10::intrusive_ptr<Aliases> aliases,
                              const OperatorCall& call) {
  checks_.note_value(shape);
  checks_.note_maker(next_value_, call);
  const auto arrived = received_->find(next_value_);
  if (arrived == received_->end()) {
    at::Tensor nothing = model_.shapes.hollow(shape);
    if (shape.requires_grad) torch::autograd::create_gradient_edge(nothing, lost_gradients());
    return value_of(std::move(nothing), target, Bytes::kNone, std::move(aliases), shape.sizes, shape.strides);
  }
  return value_of(arrived->second, target, Bytes::kArrived, std::move(aliases), shape.sizes, shape.strides);
}

void ChunkRun::imagine(OperatorCall& call, const Target& target) {
  const ResultShapes& shapes = model_.shapes.of(call);
  std::vector<at::Tensor> taken;  // in the order of GhostShapes
  std::vector<at::Tensor> written;
  std::vector<bool> is_written;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    taken.push_back(tensor);
    is_written.push_back(call.writes(index));
    if (is_written.back()) written.push_back(tensor);
    return {};
  });
  for (std::size_t i = 0; i < written.size(); ++i) {
    const StageDataPtr data = stage_data(written[i]);
    if (data->is_of_model()) continue;
    auto its = data->shared_aliases();
    if (data->stage() != target.stage) {
      its->has_moved = true;
      its = nullptr;
    }
    intercept::become(written[i], ghost_of(shapes.written[i], target, std::move(its), call));
  }
  const auto ghost = [&](const ResultShapes::One& one) {
    // Others are values of their own, since contiguous() gives its argument back or not by what lies in memory.
    if (one.is_argument && is_written[*one.argument]) return taken[*one.argument];
    const StageDataPtr viewed = one.argument ? stage_data(taken[*one.argument]) : StageDataPtr();
    return ghost_of(one.shape, target, viewed ? viewed->shared_aliases() : c10::intrusive_ptr<Aliases>(), call);
  };
  std::vector<c10::IValue> results;
  for (const ResultShapes::Result& result : shapes.results) {
    if (result.is_tensor) {
      results.emplace_back(result.tensors.empty() ? at::Tensor() : ghost(result.tensors.front()));
    } else if (result.is_list) {
      std::vector<at::Tensor> tensors;
      for (const ResultShapes::One& one : result.tensors) tensors.push_back(ghost(one));
      results.emplace_back(std::move(tensors));
    } else {
      results.push_back(result.other);
    }
  }
  call.return_values(std::move(results));
}

}  // namespace tessera::pp
