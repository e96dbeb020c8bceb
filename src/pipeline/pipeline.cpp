#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/schedule/check_schedule.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "pipeline/pipeline_state.h"
#include "pipeline/stage_cut.h"

namespace tessera {

const FieldList<PipelineOptions>& PipelineOptions::fields() {
  static const auto kList =
      FieldList<PipelineOptions>("pipeline")
          .add("split", &PipelineOptions::split_, "The modules with which the second and later stages begin.")
          .add("layers_per_stage", &PipelineOptions::layers_per_stage_, "Instead: how many layers each stage has.")
          .add("place", &PipelineOptions::place_, "Modules that belong to another stage: \"head: 1\".")
          .add("schedule", &PipelineOptions::schedule_, "In which order the stages work.")
          .add("num_chunks", &PipelineOptions::num_chunks_, "Stages of each rank with \"interleaved\"; 0: two.")
          .add("dynamic", &PipelineOptions::dynamic_,
               "The forward may run other operators for each micro-batch of the same shapes.")
          .add("init_sync", &PipelineOptions::init_sync_,
               "At the start every rank takes rank 0's parameters and buffers.")
          .add("reproducible", &PipelineOptions::reproducible_,
               "The same weights, bit for bit, on any number of stages and a power of two of copies.")
          .add("num_checked_steps", &PipelineOptions::num_checked_steps_,
               "In so many steps the values of the batch are compared between the ranks.")
          .add("receive_ahead", &PipelineOptions::receive_ahead_,
               "So many messages from each rank are received before they are needed.");
  return kList;
}

namespace pp {

std::vector<at::Tensor> split_tensor(const at::Tensor& tensor, int num_micro_batches) {
  if (!tensor.defined()) return std::vector<at::Tensor>(static_cast<std::size_t>(std::max(num_micro_batches, 0)));
  const std::int64_t num_samples = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (num_micro_batches < 1 || num_samples < num_micro_batches) {
    throw ConfigError("a batch of " + std::to_string(num_samples) + " samples cannot be divided into " +
                      std::to_string(num_micro_batches) + " micro-batches: each needs one sample at least");
  }
  return tensor.tensor_split(num_micro_batches, 0);
}

}  // namespace pp

namespace {

void require_schedule(const PipelineOptions& options, int num_ranks) {
  if (options.own_schedule()) return;
  const auto kind = pipeline_schedule_kind(options.schedule());
  if (!kind) {
    std::string names;
    for (const auto& [name, one] : pipeline_schedule_names()) names += (names.empty() ? "" : ", ") + name;
    throw ConfigError("there is no pipeline schedule \"" + options.schedule() + "\": the kinds are " + names);
  }
  PipelineShape shape{num_ranks, 1, std::nullopt};
  if (options.num_chunks() > 0) shape.num_chunks = static_cast<int>(options.num_chunks());
  static_cast<void>(make_pipeline_schedule(*kind, shape));  // says what is wrong with it
}

std::vector<int> ranks_of_stages(const PipelineOptions& options, int num_ranks) {
  const PipelineSchedule schedule = [&] {
    if (options.own_schedule()) return options.own_schedule()(num_ranks);
    PipelineShape shape{num_ranks, 1, std::nullopt};
    if (options.num_chunks() > 0) shape.num_chunks = static_cast<int>(options.num_chunks());
    return make_pipeline_schedule(*pipeline_schedule_kind(options.schedule()), shape);
  }();
  const ScheduleCheck check = check_schedule(schedule);
  if (!check.faults.empty()) throw ConfigError("the schedule cannot work: " + check.faults.front());
  if (schedule.num_ranks() != num_ranks) {
    throw ConfigError("the schedule is for " + std::to_string(schedule.num_ranks()) + " ranks, and the axis has " +
                      std::to_string(num_ranks));
  }
  return schedule.rank_of_stage;
}

/// A line for each option and tensor that must be the same on every rank.
std::vector<std::string> lines_of(const torch::nn::Module& model, const PipelineOptions& options) {
  std::vector<std::string> lines;
  for (const auto& field : PipelineOptions::fields().fields()) {
    lines.push_back("option " + field.key + " = " + PipelineOptions::fields().get_text(options, field.key));
  }
  const auto tensors = described(state_of(model));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

/// What cuts the layers of the model already; null: nothing.
std::shared_ptr<shard::ModelState> inner_of(const torch::nn::Module& model) {
  auto inner = shard::find_shared(model);
  if (inner && !inner->cuts_layers()) {
    throw ConfigError(
        "the model is shared by ranks already: call pipeline() before distribute() and fully_shard(), which then share "
        "the stages");
  }
  if (inner && std::dynamic_pointer_cast<pp::PipelineState>(inner)) {
    throw ConfigError("the model is on the stages of a pipeline already: call pipeline() once for a model");
  }
  if (!inner) shard::require_uncut(model, "a pipeline");
  return inner;
}

void require_reproducible(const torch::nn::Module& model, bool is_cut) {
  if (is_cut) {
    throw ConfigError(
        "reproducible mode promises the bits of one process, and the layers of this model are cut by tensor "
        "parallelism, whose sums over ranks have other bits: leave one of the two out");
  }
  refuse_irreproducible_modules(model);
}

}  // namespace

Pipeline::Pipeline(std::shared_ptr<pp::PipelineState> state) : ParallelModel(state), state_(std::move(state)) {}

at::Tensor Pipeline::run(const PipelineBatch& batch, bool trains) const { return state_->run(batch, trains); }
PipelineSchedule Pipeline::schedule(int num_micro_batches) const { return state_->schedule(num_micro_batches); }
std::map<int, double> Pipeline::stage_seconds() const { return state_->stage_seconds(); }
PipelineReport Pipeline::report() const { return state_->report(); }

std::string PipelineReport::text() const {
  std::ostringstream text;
  text << "stage  rank  parameters  begins with\n";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    text << std::setw(5) << i << std::setw(6) << stages[i].rank << std::setw(12) << stages[i].num_parameters << "  "
         << stages[i].first << "\n";
  }
  if (!values.empty()) text << "crosses        bytes  gradient  value\n";
  for (const Value& one : values) {
    text << std::setw(4) << one.from_stage << " > " << std::setw(2) << one.from_stage + 1 << std::setw(11)
         << one.num_bytes << std::setw(10) << (one.has_gradient ? "yes" : "no") << "  " << one.op << " "
         << at::IntArrayRef(one.sizes) << "\n";
  }
  for (const Shared& one : shared) {
    text << "used on other ranks too, which get it in every step: " << one.name << " (stage " << one.stage << ")\n";
  }
  return text.str();
}

Pipeline pipeline(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks, const PipelineOptions& options) {
  if (!model) throw ConfigError("there is no model to cut into stages: the pointer is null");
  const Communicator& comm = ranks.comm();
  intercept::keep_large_blocks_apart();
  auto stages = std::make_shared<pp::StageModel>();
  stages->module = model;
  stages->rank = comm.rank();
  stages->world_rank = comm.world_rank();
  std::string fault;
  std::shared_ptr<shard::ModelState> inner;
  try {
    inner = inner_of(*model);
    if (options.reproducible()) require_reproducible(*model, inner != nullptr);
    require_schedule(options, comm.size());
    stages->rank_of_stage = ranks_of_stages(options, comm.size());
    stages->tensors = pp::cut_into_stages(*model, options, stages->num_stages());
  } catch (const ConfigError& error) {
    fault = error.what();
  }
  // If one rank finds a fault, the others must throw too instead of waiting for it.
  std::vector<std::string> lines{"fault: " + fault};
  std::ranges::replace(lines.back(), '\n', ' ');
  if (fault.empty()) {
    const auto more = lines_of(*model, options);
    lines.insert(lines.end(), more.begin(), more.end());
    for (const pp::StageTensor& one : stages->tensors)
      lines.push_back(one.name + ": stage " + std::to_string(one.stage));
  }
  require_same_lines(comm, lines, "do not cut the same model into stages");
  if (!fault.empty()) throw ConfigError(fault + stages->where());

  for (const pp::StageTensor& one : stages->tensors) {
    if (!one.is_buffer) stages->device = one.tensor.device();
  }
  const at::NoGradGuard no_grad;
  // One by one, so that no more than one tensor of a model without bytes is ever whole.
  for (std::size_t i = 0; i < stages->tensors.size(); ++i) {
    pp::StageTensor& one = stages->tensors[i];
    const bool is_here = stages->is_here(one.stage) || one.is_buffer;
    if (is_here || options.init_sync()) materialize(one.tensor);
    const bool is_part = intercept::holds_part(one.tensor);
    one.held_sizes = intercept::held_sizes(one.tensor).vec();
    one.held_strides = (is_part ? intercept::held_part(one.tensor) : one.tensor).strides().vec();
    one.slice = global_slice(one.tensor);
    if (options.init_sync()) broadcast_all(comm, {intercept::held_part(one.tensor)}, 0);
    if (!is_here) pp::send_away(*stages, i);
  }
  if (options.reproducible()) use_reproducible_kernels(/*num_threads=*/1);
  auto state = std::make_shared<pp::PipelineState>(std::move(stages), inner, comm, options);
  if (inner) inner->set_outer(state);
  shard::note_shared(state);
  return Pipeline(std::move(state));
}

}  // namespace tessera
