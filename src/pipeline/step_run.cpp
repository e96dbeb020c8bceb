#include "pipeline/step_run.h"

#include <tessera/comm/task.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>

namespace tessera::pp {
namespace {

/// Where the gradient of a tensor goes; none if it requires none.
torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  return tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge();
}

/// Notices random numbers that a backward pass draws: in one process they would come between those of the forwards.
class NoDraws {
 public:
  explicit NoDraws(const StageModel& model) : model_(model), before_(intercept::RandomState::now(model.device)) {}
  void require() const {
    if (before_ == intercept::RandomState::now(model_.device)) return;
    throw ConfigError(
        "a backward pass draws random numbers, as a custom function may do: in a pipeline they would not be those "
        "of one process. Draw them in the forward" +
        model_.where());
  }

 private:
  const StageModel& model_;
  intercept::RandomState before_;
};

bool halves_backwards(const PipelineSchedule& schedule) {
  return std::ranges::any_of(schedule.operations, [](const auto& operations) {
    return std::ranges::any_of(operations,
                               [](const auto& one) { return one.kind == PipelineOperation::Kind::kBackwardInput; });
  });
}

}  // namespace

StepRun::StepRun(StageModel& model, Channels& channels, const PipelineSchedule& schedule, const PipelineBatch& batch,
                 std::vector<const ForwardPlan*> plans, Settings settings)
    : model_(model),
      channels_(channels),
      schedule_(schedule),
      batch_(batch),
      plans_(std::move(plans)),
      settings_(std::move(settings)),
      halves_(settings_.trains && !settings_.is_reproducible && halves_backwards(schedule)),
      sum_of_weights_(std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0)),
      inbox_(
          channels, schedule,
          [this](const PipelineMessage& message) -> const std::vector<CrossingValue>& {
            return crossing(message.micro_batch, message.is_gradient ? message.from_stage - 1 : message.from_stage);
          },
          settings_.receive_ahead),
      outbox_(channels),
      starts_(plans_.size() + 1) {}

const std::vector<CrossingValue>& StepRun::crossing(int micro_batch, int from_stage) const {
  return plan(micro_batch).crossing[static_cast<std::size_t>(from_stage)];
}

double StepRun::share_of(int micro_batch) const {
  const double weight = batch_.weights[static_cast<std::size_t>(micro_batch)];
  return sum_of_weights_ > 0 ? weight / sum_of_weights_ : 0;
}

StepRun::~StepRun() { model_.shared.clear(); }

at::Tensor StepRun::run() {
  const at::AutoGradMode grad_mode(settings_.trains);
  starts_.front() = intercept::RandomState::now(model_.device);
  fetch_shared();
  if (settings_.trains && settings_.is_reproducible) sums_.emplace(model_, batch_.num_micro_batches, in_parts());
  for (const PipelineOperation& operation : schedule_.operations[static_cast<std::size_t>(model_.rank)]) {
    execute(operation);
  }
  if (settings_.trains && sums_) return_parts();
  if (settings_.trains && !sums_) return_shared();
  wait_for_outbox();
  restore_random_state(static_cast<int>(plans_.size()));
  return sum_of_losses();
}

/// For reports and traces, which number the ranks of the world.
std::string StepRun::in_words(PipelineOperation operation) const {
  if (!operation.is_computation()) operation.peer = channels_.comm().world_rank_of(operation.peer);
  return to_string(operation);
}

std::string StepRun::rank_in_words(int rank) const {
  return "rank " + std::to_string(channels_.comm().world_rank_of(rank));
}

void StepRun::wait_for_outbox() {
  const comm::Task task(channels_.comm(), "end of a step: until the messages of this rank have left");
  outbox_.wait();
}

void StepRun::execute(const PipelineOperation& operation) {
  using Kind = PipelineOperation::Kind;
  const Place place{operation.micro_batch, operation.stage};
  const comm::Task task(channels_.comm(), in_words(operation));
  switch (operation.kind) {
    case Kind::kSendActivation:
      outbox_.send_values(operation.peer, crossing(operation.micro_batch, operation.stage), chunks_.at(place).outputs);
      return release_outputs(place);
    case Kind::kRecvActivation:
      values_[place] = inbox_.take(operation.peer, operation.message());
      return;
    case Kind::kSendGradient:
      outbox_.send_gradients(operation.peer, crossing(operation.micro_batch, operation.stage - 1), returned_.at(place));
      returned_.erase(place);
      return;
    case Kind::kRecvGradient:
      gradients_[place] = inbox_.take(operation.peer, operation.message());
      return;
    default:
      return compute(operation);
  }
}

void StepRun::compute(const PipelineOperation& operation) {
  using Kind = PipelineOperation::Kind;
  const auto start = std::chrono::steady_clock::now();
  if (operation.kind == Kind::kForward) {
    forward(operation.micro_batch, operation.stage);
  } else {
    if (operation.kind != Kind::kBackwardWeight) backward(operation.micro_batch, operation.stage);
    if (operation.kind != Kind::kBackwardInput) backward_weight({operation.micro_batch, operation.stage});
  }
  seconds_[operation.stage] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void StepRun::restore_random_state(int micro_batch) {
  const auto place = static_cast<std::size_t>(micro_batch);
  if (!starts_[place]) {
    // A schedule in which this micro-batch comes before one that the program would run first.
    restore_random_state(micro_batch - 1);
    static_cast<void>(ChunkRun::plan(model_, [&] {
      const at::Tensor loss = batch_.loss(micro_batch - 1);
      starts_[place] = intercept::RandomState::now(model_.device);
      return loss;
    }));
  }
  starts_[place]->restore();
}

void StepRun::forward(int micro_batch, int stage) {
  const Place place{micro_batch, stage};
  Chunk& chunk = chunks_[place];
  std::vector<at::Tensor> received = std::move(values_[place]);
  values_.erase(place);
  if (settings_.trains && stage > 0) {
    const auto& values = crossing(micro_batch, stage - 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].shape.requires_grad) received[i] = chunk.arrivals.enter(received[i]);
    }
  }
  restore_random_state(micro_batch);
  if (halves_) chunk.deferred = std::make_shared<intercept::DeferredGradients>();
  ChunkRun::Result result = ChunkRun::compute(model_, plan(micro_batch), stage, received, chunk.deferred,
                                              [&] { return batch_.loss(micro_batch); });
  auto& end = starts_[static_cast<std::size_t>(micro_batch) + 1];
  if (!end) end = intercept::RandomState::now(model_.device);
  if (!result.loss.defined()) {
    for (const at::Tensor& one : result.outputs) chunk.begins.push_back(edge_of(one));
    chunk.outputs = std::move(result.outputs);
    return hand_over(micro_batch, stage);
  }
  chunk.begins.push_back(edge_of(result.loss));
  chunk.loss = shape_of(result.loss);
  if (!settings_.trains) chunks_.erase(place);
  const at::NoGradGuard no_grad;
  const at::Tensor share = result.loss.detach().reshape({}) * share_of(micro_batch);
  loss_ = loss_.defined() ? loss_ + share : share;
}

void StepRun::hand_over(int micro_batch, int stage) {
  if (!model_.is_here(stage + 1)) return;
  std::vector<at::Tensor>& values = values_[{micro_batch, stage + 1}];
  for (const at::Tensor& one : chunks_.at({micro_batch, stage}).outputs) values.push_back(one.detach());
  release_outputs({micro_batch, stage});
}

/// Backward needs the history of what a stage has given, and not its bytes.
void StepRun::release_outputs(const Place& place) {
  if (settings_.trains) {
    chunks_.at(place).outputs.clear();
  } else {
    chunks_.erase(place);
  }
}

void StepRun::backward(int micro_batch, int stage) {
  const Place place{micro_batch, stage};
  Chunk chunk = std::move(chunks_.at(place));
  chunks_.erase(place);
  std::vector<at::Tensor> given;
  if (stage == model_.num_stages() - 1) {
    given.push_back(at::full(chunk.loss.sizes, share_of(micro_batch) * batch_.loss_scale,
                             at::TensorOptions().dtype(chunk.loss.dtype).device(chunk.loss.device)));
  } else {
    given = std::move(gradients_[place]);
    gradients_.erase(place);
  }
  torch::autograd::edge_list begins;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < chunk.begins.size(); ++i) {
    if (!chunk.begins[i].function || !given[i].defined()) continue;
    begins.push_back(chunk.begins[i]);
    gradients.push_back(std::move(given[i]));
  }
  chunk.begins.clear();
  if (!begins.empty()) {
    const NoDraws no_draws(model_);
    torch::autograd::Engine::get_default_engine().execute(begins, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
    no_draws.require();
  }
  if (chunk.deferred) deferred_[place] = std::move(chunk.deferred);
  if (sums_) sums_->take(micro_batch, stage, [this](std::size_t shared) { return shared_gradient(shared); });
  if (stage == 0) return;
  std::vector<at::Tensor> arrived = chunk.arrivals.take();
  std::vector<at::Tensor>& returned = returned_[place];
  std::size_t next = 0;
  for (const CrossingValue& one : crossing(micro_batch, stage - 1)) {
    returned.push_back(one.shape.requires_grad ? std::move(arrived[next++]) : at::Tensor());
  }
  hand_back(micro_batch, stage);
}

void StepRun::backward_weight(const Place& place) {
  const auto found = deferred_.find(place);
  if (found != deferred_.end()) {
    found->second->run();
    deferred_.erase(found);
  }
  if (++num_backwards_[place.second] == plans_.size()) note_complete(place.second);
}

/// Parameters whose gradients come from several stages, in a step.
std::set<std::size_t> StepRun::in_parts() const {
  std::set<std::size_t> places;
  for (const ForwardPlan* const one : plans_) {
    places.insert(one->spread.begin(), one->spread.end());
    for (const auto& entry : one->shared) places.insert(entry.first);
  }
  return places;
}

void StepRun::note_complete(int stage) {
  const std::set<std::size_t> later = in_parts();
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < model_.tensors.size(); ++i) {
    const StageTensor& one = model_.tensors[i];
    if (!one.is_buffer && one.stage == stage && !later.contains(i)) parameters.push_back(one.tensor);
  }
  settings_.on_complete(parameters);
}

void StepRun::hand_back(int micro_batch, int stage) {
  if (!model_.is_here(stage - 1)) return;
  gradients_[{micro_batch, stage - 1}] = std::move(returned_.at({micro_batch, stage}));
  returned_.erase({micro_batch, stage});
}

/// Parameters that this rank has and others use, and the other way round. The same order on every rank.
std::map<std::size_t, std::set<int>> StepRun::users_of_shared() const {
  std::map<std::size_t, std::set<int>> users;
  for (const ForwardPlan* const one : plans_) {
    for (const auto& [place, ranks] : one->shared) users[place].insert(ranks.begin(), ranks.end());
  }
  return users;
}

void StepRun::fetch_shared() {
  for (const auto& [place, ranks] : users_of_shared()) {
    const StageTensor& one = model_.tensors[place];
    const at::NoGradGuard no_grad;
    if (model_.is_here(one.stage)) {
      const at::Tensor held = intercept::held_part(one.tensor);
      // A shard is gathered by an operator that reads it.
      const at::Tensor bytes = settings_.is_shared_further ? held.clone() : held;
      for (const int rank : ranks) outbox_.send_values(rank, {value_of(one)}, {bytes});
    } else if (ranks.contains(model_.rank)) {
      const int owner = model_.rank_of_stage[static_cast<std::size_t>(one.stage)];
      const comm::Task task(channels_.comm(), "RecvParameter " + one.name + ", from " + rank_in_words(owner));
      at::Tensor copy = as_held(one, receive_value(channels_, owner, value_of(one)));
      copy.set_requires_grad(one.tensor.requires_grad() && settings_.trains);
      model_.shared.emplace(place, std::move(copy));
    }
  }
}

/// As a message carries what a rank holds of it.
CrossingValue StepRun::value_of(const StageTensor& one) {
  return {0, {one.held_sizes, one.held_strides, one.tensor.scalar_type(), one.tensor.device(), true}, one.name};
}

/// What came to the copy, and what a custom function gave to the parameter itself, which it was called with.
at::Tensor StepRun::shared_gradient(std::size_t place) const {
  const at::NoGradGuard no_grad;
  at::Tensor& direct = at::Tensor(model_.tensors[place].tensor).mutable_grad();
  at::Tensor copy = model_.shared.at(place);
  const at::Tensor of_copy = intercept::gradient_part(copy, copy.grad());
  copy.mutable_grad() = at::Tensor();
  const at::Tensor sum = !direct.defined() ? of_copy : of_copy.defined() ? of_copy + direct : direct;
  direct = at::Tensor();
  return sum;
}

void StepRun::return_shared() {
  for (const auto& [place, ranks] : users_of_shared()) {
    const StageTensor& one = model_.tensors[place];
    if (!one.tensor.requires_grad()) continue;
    if (model_.is_here(one.stage)) {
      for (const int rank : ranks) {
        const comm::Task task(channels_.comm(),
                              "RecvGradient of parameter " + one.name + ", from " + rank_in_words(rank));
        const at::Tensor gradient = receive_gradient(channels_, rank, value_of(one));
        if (gradient.defined()) torch::autograd::backward({one.tensor}, {as_held(one, gradient)});
      }
    } else if (ranks.contains(model_.rank)) {
      const int owner = model_.rank_of_stage[static_cast<std::size_t>(one.stage)];
      outbox_.send_gradients(owner, {value_of(one)}, {shared_gradient(place)});
    }
  }
  require_no_gradients_elsewhere();
}

/// Those of a rank, the last one first.
std::vector<int> StepRun::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = model_.num_stages() - 1; stage >= 0; --stage) {
    if (model_.rank_of_stage[static_cast<std::size_t>(stage)] == rank) stages.push_back(stage);
  }
  return stages;
}

/// return_shared() in reproducible mode: the parts of each micro-batch and stage by themselves.
void StepRun::return_parts() {
  for (const auto& [place, ranks] : users_of_shared()) {
    const StageTensor& one = model_.tensors[place];
    if (!one.tensor.requires_grad()) continue;
    const int owner = model_.rank_of_stage[static_cast<std::size_t>(one.stage)];
    for (const int rank : ranks) {
      if (rank != model_.rank && owner != model_.rank) continue;
      const comm::Task task(channels_.comm(),
                            "RecvGradient of parameter " + one.name + ", from " + rank_in_words(rank));
      for (int micro_batch = 0; micro_batch < batch_.num_micro_batches; ++micro_batch) {
        for (const int stage : stages_of(rank)) {
          if (owner == model_.rank) {
            sums_->add_part(place, micro_batch, stage, receive_gradient(channels_, rank, value_of(one)));
          } else {
            outbox_.send_gradients(owner, {value_of(one)}, {sums_->part(place, micro_batch, stage)});
          }
        }
      }
    }
  }
  require_no_gradients_elsewhere();
  sums_->finish();
}

void StepRun::require_no_gradients_elsewhere() const {
  for (const StageTensor& one : model_.tensors) {
    if (model_.is_here(one.stage) || !one.tensor.grad().defined()) continue;
    throw ConfigError(
        "a gradient has reached " + one.name + " of stage " + std::to_string(one.stage) +
        " on another rank: a custom function gives a gradient to a parameter that its forward does not use, "
        "or the program has set it" +
        model_.where());
  }
}

at::Tensor StepRun::sum_of_losses() {
  const at::NoGradGuard no_grad;
  const int root = model_.rank_of_stage.back();
  const Shape& shape = plans_.front()->loss;
  if (!loss_.defined()) loss_ = at::empty({}, at::TensorOptions().dtype(shape.dtype).device(shape.device));
  const comm::Task task(channels_.comm(), "broadcast of the loss, from " + rank_in_words(root));
  channels_.comm().broadcast(loss_, root);
  return loss_;
}

}  // namespace tessera::pp
