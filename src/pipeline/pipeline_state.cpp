#include "pipeline/pipeline_state.h"

#include <tessera/comm/task.h>
#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/random_state.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/named_tensors.h>
#include <tessera/shard/state_broadcast.h>
#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "pipeline/reproducible_sums.h"
#include "pipeline/step_run.h"

namespace tessera::pp {
namespace {

Slice nothing_of(const at::Tensor& tensor) { return Slice::extent(tensor.sizes().vec(), {0, 0}); }

void append(std::string& key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key += "undefined;";
    return;
  }
  key += std::to_string(static_cast<int>(tensor.scalar_type())) + (tensor.requires_grad() ? "g" : "") + "[";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    key += std::to_string(tensor.size(d)) + ":" + std::to_string(tensor.stride(d)) + ",";
  }
  key += "];";
}

std::int64_t digest_of(const std::string& text) { return static_cast<std::int64_t>(Digest().add(text).value()); }

/// Of one that a program has made: others follow from options that are compared.
std::int64_t digest_of(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& operations : schedule.operations) {
    for (const PipelineOperation& one : operations) {
      for (const int number : {static_cast<int>(one.kind), one.micro_batch, one.stage, one.peer}) {
        text += std::to_string(number) + ",";
      }
    }
    text += ";";
  }
  return digest_of(text);
}

std::int64_t digest_of(const PipelineBatch& batch) {
  Digest values;
  for (int i = 0; i < batch.num_micro_batches; ++i) values.add(fingerprint_of(batch.tensors(i)));
  return static_cast<std::int64_t>(values.value());
}

[[noreturn]] void refuse_written_batch(const StageModel& model) {
  throw ConfigError("the forward writes to its micro-batch, and runs several times for each: let it write to a copy" +
                    model.where());
}

/// Notices writes to the batch: the forward runs several times for each micro-batch.
class UnwrittenBatch {
 public:
  explicit UnwrittenBatch(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const at::Tensor& one : tensors_) versions_.push_back(version_of(one));
  }
  void require(const StageModel& model) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (version_of(tensors_[i]) == versions_[i]) continue;
      refuse_written_batch(model);
    }
  }

 private:
  static std::int64_t version_of(const at::Tensor& tensor) {
    return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
  }
  std::vector<at::Tensor> tensors_;
  std::vector<std::int64_t> versions_;
};

/// What all ranks must have in common in a step.
struct Agreement {
  const char* what;
  std::int64_t digest;
};

}  // namespace

PipelineState::PipelineState(std::shared_ptr<StageModel> model, std::shared_ptr<shard::ModelState> inner,
                             Communicator comm, PipelineOptions options)
    : model_(std::move(model)), inner_(std::move(inner)), options_(std::move(options)), channels_(std::move(comm)) {}

std::vector<ModelAxis> PipelineState::axes() const {
  std::vector<ModelAxis> axes{{channels_.comm(), true}};
  if (inner_) std::ranges::copy(inner_->axes(), std::back_inserter(axes));
  return axes;
}

std::vector<TrainedTensor> PipelineState::trained() const {
  std::unordered_map<const c10::TensorImpl*, TrainedTensor> of_inner;
  for (TrainedTensor& one : inner_ ? inner_->trained() : std::vector<TrainedTensor>()) {
    of_inner.emplace(one.tensor.unsafeGetTensorImpl(), std::move(one));
  }
  std::vector<TrainedTensor> found;
  for (const StageTensor& one : model_->tensors) {
    if (one.is_buffer) continue;
    const bool is_here = model_->is_here(one.stage);
    const Slice slice = is_here ? global_slice(one.tensor) : nothing_of(one.tensor);
    found.push_back({one.name, one.tensor, {{one.name, slice, {0, slice.num_elements()}}}, {}});
    const auto known = of_inner.find(one.tensor.unsafeGetTensorImpl());
    if (!is_here || known == of_inner.end()) continue;
    for (const std::size_t axis : known->second.replicated_over) {  // the axis of stages comes first
      found.back().replicated_over.push_back(axis + 1);
    }
  }
  return found;
}

std::vector<StateSlice> PipelineState::state_slices() const {
  std::vector<StateSlice> found;
  for (const StageTensor& one : model_->tensors) {
    if (model_->is_here(one.stage)) {
      found.push_back(shard::whole_state(one.name, one.tensor, false));
    } else {
      const auto options = one.tensor.options().requires_grad(false);
      found.push_back({{one.name, nothing_of(one.tensor), at::empty({0}, options)}, false});
    }
  }
  return found;
}

void PipelineState::require_not_held() const {
  if (num_holds_ > 0) {
    throw ConfigError("a step of the pipeline is asked for while gather() holds its parameters whole" +
                      model_->where());
  }
  if (inner_) inner_->require_not_held();
}

void PipelineState::hold(const GatherOptions& options) {
  if (num_holds_++ == 0) {
    const at::NoGradGuard no_grad;
    for (const StageTensor& one : model_->tensors) {
      const bool is_here = model_->is_here(one.stage) || one.is_buffer;
      const at::Tensor held = is_here ? intercept::held_part(one.tensor) : memory_for(one);
      broadcast_all(channels_.comm(), {held}, model_->rank_of_stage[static_cast<std::size_t>(one.stage)]);
      if (!is_here) bring_back(one, held);
    }
  }
  if (inner_) inner_->hold(options);
}

void PipelineState::let_go(const GatherOptions& options) noexcept {
  if (inner_) inner_->let_go(options);
  if (--num_holds_ > 0) return;
  for (std::size_t i = 0; i < model_->tensors.size(); ++i) {
    const StageTensor& one = model_->tensors[i];
    if (!model_->is_here(one.stage) && !one.is_buffer) send_away(*model_, i);
  }
}

PipelineSchedule PipelineState::schedule(int num_micro_batches) const {
  if (options_.own_schedule()) return options_.own_schedule()(num_micro_batches);
  const auto kind = pipeline_schedule_kind(options_.schedule());
  PipelineShape shape{static_cast<int>(channels_.comm().size()), num_micro_batches, std::nullopt};
  if (options_.num_chunks() > 0) shape.num_chunks = static_cast<int>(options_.num_chunks());
  return make_pipeline_schedule(*kind, shape);
}

namespace {

/// The forwards alone, with their messages.
PipelineSchedule only_forwards(PipelineSchedule schedule) {
  using Kind = PipelineOperation::Kind;
  for (auto& operations : schedule.operations) {
    std::erase_if(operations, [](const PipelineOperation& one) {
      return one.kind != Kind::kForward && one.kind != Kind::kSendActivation && one.kind != Kind::kRecvActivation;
    });
  }
  return schedule;
}

}  // namespace

const ForwardPlan& PipelineState::plan_of(const std::vector<at::Tensor>& tensors, bool trains,
                                          const ChunkRun::Forward& forward) {
  const UnwrittenBatch unwritten(tensors);
  const auto find = [&] {
    const at::AutoGradMode grad_mode(trains);
    ForwardPlan plan = ChunkRun::plan(*model_, forward);
    unwritten.require(*model_);
    return plan;
  };
  if (options_.dynamic()) {
    dynamic_plans_.push_back(find());
    return dynamic_plans_.back();
  }
  std::string key = trains ? "trains;" : "evaluates;";
  for (const at::Tensor& one : tensors) append(key, one);
  for (const auto& module : model_->module->modules()) key += module->is_training() ? 't' : 'e';
  for (const StageTensor& one : model_->tensors) {
    key += one.tensor.requires_grad() ? 'g' : 'f';
    key += one.is_written ? 'w' : 'r';
  }
  const auto device = model_->device.type();
  if (at::autocast::is_autocast_enabled(device)) {
    key += std::to_string(static_cast<int>(at::autocast::get_autocast_dtype(device)));
  }
  const auto known = plans_.find(key);
  return known != plans_.end() ? known->second : plans_.emplace(key, find()).first->second;
}

void PipelineState::agree(const PipelineBatch& batch, const PipelineSchedule& list,
                          const std::vector<const ForwardPlan*>& plans, bool trains, std::int64_t values,
                          const std::exception_ptr& fault) {
  std::string forwards;
  for (const ForwardPlan* const one : plans) {
    forwards += std::to_string(one->digest);
    for (const auto& crossing : one->crossing) {
      for (const CrossingValue& value : crossing) {
        forwards += ";" + std::to_string(value.value);
        for (const std::int64_t size : value.shape.sizes) forwards += "," + std::to_string(size);
      }
    }
  }
  // All digits: the weights may be small.
  std::string weights = std::to_string(std::bit_cast<std::uint64_t>(batch.loss_scale));
  for (const double weight : batch.weights) weights += ";" + std::to_string(std::bit_cast<std::uint64_t>(weight));
  const bool draws = std::ranges::any_of(plans, [](const ForwardPlan* one) { return one->draws; });
  const std::array<Agreement, 6> all{
      {{"the number of micro-batches, or step() and evaluate()", batch.num_micro_batches * 2 + (trains ? 1 : 0)},
       {"the values of the batch", values},
       {"the list of operations", options_.own_schedule() ? digest_of(list) : 0},
       {"the weights of the losses", digest_of(weights)},
       {"the state of the random numbers",
        draws ? static_cast<std::int64_t>(intercept::RandomState::now(model_->device).digest()) : 0},
       {"the operators of the forward, or shapes", digest_of(forwards)}}};
  std::vector<std::int64_t> mine{fault ? 1 : 0};
  for (const Agreement& one : all) mine.push_back(one.digest);
  const auto count = static_cast<std::int64_t>(mine.size());
  const comm::Task task(channels_.comm(), "begin of a step: comparison of the ranks");
  const at::Tensor of_all = channels_.comm().all_gather(at::tensor(mine, at::kLong).view({1, count}));
  refuse_together(of_all.select(1, 0), fault);
  for (std::int64_t i = 1; i < count; ++i) {
    for (std::int64_t rank = 1; rank < of_all.size(0); ++rank) {
      if (of_all[rank][i].item<std::int64_t>() == of_all[0][i].item<std::int64_t>()) continue;
      throw ConfigError("ranks " + std::to_string(channels_.comm().world_rank_of(0)) + " and " +
                        std::to_string(channels_.comm().world_rank_of(static_cast<int>(rank))) +
                        " of a pipeline differ in " + all[static_cast<std::size_t>(i) - 1].what +
                        ": every rank of the axis must have the same batch, the same program and the same seed" +
                        model_->where());
    }
  }
}

/// Others would wait for a rank that does not begin.
void PipelineState::refuse_together(const at::Tensor& has_fault, const std::exception_ptr& fault) const {
  if (fault) std::rethrow_exception(fault);
  for (std::int64_t rank = 0; rank < has_fault.size(0); ++rank) {
    if (has_fault[rank].item<std::int64_t>() == 0) continue;
    throw ConfigError("rank " + std::to_string(channels_.comm().world_rank_of(static_cast<int>(rank))) +
                      " of the pipeline refuses what is asked for, and says why; nothing was done" + model_->where());
  }
}

void PipelineState::refuse_together(const std::exception_ptr& fault) const {
  refuse_together(channels_.comm().all_gather(at::tensor({std::int64_t{fault ? 1 : 0}}, at::kLong)), fault);
}

std::vector<const ForwardPlan*> PipelineState::plans_of(const PipelineBatch& batch, bool trains) {
  const auto num_written = [this] { return std::ranges::count_if(model_->tensors, &StageTensor::is_written); };
  const intercept::RandomState before = intercept::RandomState::now(model_->device);
  for (;;) {
    const auto known = num_written();
    std::vector<const ForwardPlan*> plans;
    dynamic_plans_.clear();
    dynamic_plans_.reserve(static_cast<std::size_t>(batch.num_micro_batches));
    for (int i = 0; i < batch.num_micro_batches; ++i) {
      intercept::RandomState after = before;
      plans.push_back(&plan_of(batch.tensors(i), trains, [&] {
        const at::Tensor loss = batch.loss(i);
        after = intercept::RandomState::now(model_->device);
        return loss;
      }));
      // What the next one does may depend on random numbers.
      if (options_.dynamic()) after.restore();
    }
    before.restore();
    // A buffer that a later one writes is none that is the same on every rank.
    if (num_written() == known) return plans;
  }
}

/// A hook sees the whole gradient of a parameter, once for each micro-batch: it cannot where gradients come in parts.
void PipelineState::require_hooks_fit(const std::vector<const ForwardPlan*>& plans) const {
  for (const ForwardPlan* const plan : plans) {
    for (const std::size_t place : plan->spread) {
      const StageTensor& one = model_->tensors[place];
      if (!one.tensor.requires_grad() || !intercept::has_hooks_of_program(one.tensor)) continue;
      throw ConfigError(
          "there is a hook on " + one.name +
          ", of which several stages compute parts of the gradient: cut the model so that one stage uses it, or "
          "change gradients after the step" +
          model_->where());
    }
  }
}

/// Statistics follow the order of the micro-batches.
void PipelineState::require_order(const PipelineSchedule& list) const {
  if (std::ranges::none_of(model_->tensors, &StageTensor::is_written)) return;
  for (const auto& operations : list.operations) {
    std::map<int, int> last;
    for (const PipelineOperation& one : operations) {
      if (one.kind != PipelineOperation::Kind::kForward) continue;
      const auto [place, is_first] = last.emplace(one.stage, one.micro_batch);
      if (!is_first && one.micro_batch < std::exchange(place->second, one.micro_batch)) {
        throw ConfigError("the forward writes to buffers, and the schedule takes the micro-batches of stage " +
                          std::to_string(one.stage) + " in another order than one process does" + model_->where());
      }
    }
  }
}

/// Of who copies the stages; null: nobody. Throws ConfigError where sums over the copies would have bits of their own.
shard::TreeAverage* PipelineState::tree_average(const std::shared_ptr<ModelState>& outer, int num_micro_batches) const {
  if (!outer) return nullptr;
  auto* const tree = dynamic_cast<shard::TreeAverage*>(outer.get());
  const Communicator copies = outer->axes().front().comm;
  if (!tree || !std::has_single_bit(static_cast<unsigned>(copies.size()))) {
    throw ConfigError(
        "reproducible mode adds up stages and their copies along one tree: it takes distribute() over a number of "
        "ranks "
        "that is a power of two, and no fully_shard()" +
        model_->where());
  }
  const at::Tensor counts = copies.all_gather(at::full({1}, num_micro_batches, at::kLong));
  if (counts.min().item<std::int64_t>() != counts.max().item<std::int64_t>()) {
    throw ConfigError("reproducible mode needs as many micro-batches on every copy of the stages, found " +
                      std::to_string(counts.min().item<std::int64_t>()) + " and " +
                      std::to_string(counts.max().item<std::int64_t>()) + model_->where());
  }
  return tree;
}

at::Tensor PipelineState::run(const PipelineBatch& batch, bool trains) {
  require_not_held();
  if (has_failed_) {
    throw ConfigError(
        "a step of this pipeline has failed before, and messages of it may be under way: start again from a "
        "checkpoint" +
        model_->where());
  }
  const PipelineSchedule list =
      trains ? schedule(batch.num_micro_batches) : only_forwards(schedule(batch.num_micro_batches));
  for (const double weight : batch.weights) {
    if (!(weight >= 0) || !std::isfinite(weight)) {
      throw ConfigError("the weight of a micro-batch must be 0 or more, found " + std::to_string(weight));
    }
  }
  const bool is_checked = num_steps_ < options_.num_checked_steps();
  std::int64_t values = 0;
  std::vector<const ForwardPlan*> plans;
  const auto outer = outer_.lock();
  const bool is_reproducible = trains && options_.reproducible();
  std::exception_ptr fault;
  try {
    if (is_checked) values = digest_of(batch);
    plans = plans_of(batch, trains);
    if (is_checked && digest_of(batch) != values) refuse_written_batch(*model_);
    require_hooks_fit(plans);
    require_order(list);
    if (is_reproducible) require_reproducible(*model_, batch.weights, plans);
    if (outer) outer->require_usable();
  } catch (...) {
    fault = std::current_exception();
  }
  agree(batch, list, plans, trains, values, fault);
  ++num_steps_;
  std::vector<UnwrittenBatch> unwritten;
  for (int i = 0; i < batch.num_micro_batches; ++i) unwritten.emplace_back(batch.tensors(i));
  // Copies and shards of a stage average its gradients when its last micro-batch is through, once a step.
  shard::TreeAverage* const tree = is_reproducible ? tree_average(outer, batch.num_micro_batches) : nullptr;
  std::optional<PromisedGradients> promised;
  if (outer && trains) promised.emplace(ParallelModel(outer));
  has_failed_ = true;  // until it has ended
  StepRun step(*model_, channels_, list, batch, plans,
               {.trains = trains,
                .receive_ahead = static_cast<std::size_t>(options_.receive_ahead()),
                .is_reproducible = is_reproducible,
                .is_shared_further = outer != nullptr,
                .on_complete = [&](const std::vector<at::Tensor>& parameters) {
                  if (promised && !is_reproducible) promised->complete(parameters);
                }});
  at::Tensor loss = step.run();
  stage_seconds_ = step.seconds();
  if (tree) tree->average_along_tree();
  if (promised) promised->finish();
  has_failed_ = false;
  for (const UnwrittenBatch& one : unwritten) one.require(*model_);
  last_plan_ = *plans.front();
  return loss;
}

PipelineReport PipelineState::report() const {
  PipelineReport report;
  for (int stage = 0; stage < model_->num_stages(); ++stage) {
    PipelineReport::Stage one;
    one.rank = model_->rank_of_stage[static_cast<std::size_t>(stage)];
    for (const StageTensor& tensor : model_->tensors) {
      if (tensor.stage != stage) continue;
      if (one.first.empty()) one.first = tensor.name;
      if (!tensor.is_buffer) one.num_parameters += tensor.tensor.numel();
    }
    report.stages.push_back(std::move(one));
  }
  for (std::size_t stage = 0; stage < last_plan_.crossing.size(); ++stage) {
    for (const CrossingValue& one : last_plan_.crossing[stage]) {
      report.values.push_back(
          {static_cast<int>(stage), one.op, one.shape.sizes, one.shape.requires_grad, one.num_bytes()});
    }
  }
  for (const auto& [place, ranks] : last_plan_.shared) {
    const StageTensor& one = model_->tensors[place];
    report.shared.push_back({one.name, one.stage, {ranks.begin(), ranks.end()}});
  }
  report.num_operators = last_plan_.num_operators;
  return report;
}

}  // namespace tessera::pp
