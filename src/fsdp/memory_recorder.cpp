#include "fsdp/memory_recorder.h"

#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_memory.h>
#include <tessera/intercept/acting_tensor.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>

#include "fsdp/fsdp_state.h"

namespace tessera::fsdp {
namespace {

TrainingPhase phase_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return TrainingPhase::kForward;
    case Pass::kBackward:
      return TrainingPhase::kBackward;
    case Pass::kEvaluation:
      return TrainingPhase::kEvaluation;
  }
  throw InternalError("no such pass");
}

/// Whether the operator makes a new tensor like the parameter.
bool makes_another(std::string_view operator_name) {
  return operator_name.ends_with("_like") || operator_name == "aten::clone";
}

c10::Device device_of(ModelParts& parts) {
  for (const auto& unit : parts.units()) return unit->shard().device();
  for (const at::Tensor& parameter : parts.replicated().tensors) return parameter.device();
  return c10::kCPU;
}

void raise_to(MemoryBytes& peaks, const MemoryBytes& others) {
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) peaks.of_kind[i] = std::max(peaks.of_kind[i], others.of_kind[i]);
}

}  // namespace

std::shared_ptr<MemoryRecorder> MemoryRecorder::make(const std::shared_ptr<FsdpState>& state, std::size_t max_phases) {
  for (const auto& unit : state->parts().units()) {
    if (!unit->shard().grad().defined() && !unit->has_unreduced_gradients()) continue;
    throw ConfigError("memory is counted from before the first backward: the parameters of \"" + unit->name() +
                      "\" have gradients already. Make the FsdpMemory right after fully_shard()");
  }
  std::shared_ptr<MemoryRecorder> recorder(new MemoryRecorder(state, max_phases));
  std::vector<at::Tensor> written = state->parts().replicated().tensors;
  for (const auto& unit : state->parts().units()) written.push_back(unit->shard());
  recorder->watch_ = intercept::Watch(written, recorder, intercept::Interest::kUsesAndEnds);
  state->record(recorder);
  return recorder;
}

MemoryRecorder::MemoryRecorder(std::shared_ptr<FsdpState> state, std::size_t max_phases)
    : state_(std::move(state)),
      max_phases_(max_phases),
      thread_(std::this_thread::get_id()),
      start_(std::chrono::steady_clock::now()),
      memory_(device_of(state_->parts())) {
  const Communicator& comm = state_->parts().ranks().shards;
  memory_.explain_failures("rank " + std::to_string(comm.world_rank()),
                           "Parameters, gradients and optimizer are cut into " + std::to_string(comm.size()) +
                               ": use more ranks. For gathered and spare memory use smaller units, for activations "
                               "tessera::recompute() or a smaller batch");
  count_parameters();
  follow(state_->parts().flat_buffers(), MemoryKind::kGathered);
  follow(state_->parts().gradient_buffers().flat, MemoryKind::kGradients);
  follow(state_->parts().gradient_buffers().averages, MemoryKind::kGradients);
}

MemoryRecorder::~MemoryRecorder() {
  state_->parts().flat_buffers().observe(nullptr);
  state_->parts().gradient_buffers().flat.observe(nullptr);
  state_->parts().gradient_buffers().averages.observe(nullptr);
}

void MemoryRecorder::count_parameters() {
  for (const auto& unit : state_->parts().units()) {
    memory_.add(MemoryKind::kParameters, static_cast<std::int64_t>(unit->shard().nbytes()));
  }
  for (const at::Tensor& parameter : state_->parts().replicated().tensors) {
    memory_.add(MemoryKind::kParameters, static_cast<std::int64_t>(intercept::held_part(parameter).nbytes()));
  }
}

void MemoryRecorder::follow(BufferPool& pool, MemoryKind kind) {
  const auto count = [this, kind](std::int64_t lent_bytes, std::int64_t spare_bytes) {
    memory_.add(kind, lent_bytes);
    memory_.add(MemoryKind::kSpare, spare_bytes);
  };
  count(static_cast<std::int64_t>(pool.lent_bytes()), static_cast<std::int64_t>(pool.held_bytes() - pool.lent_bytes()));
  pool.observe(count);
}

void MemoryRecorder::pass_begins(Pass pass) {
  if (phase_ == phase_of(pass)) return;
  had_pass_ = true;
  memory_.stop_marking();
  watch_.pause();
  enter(phase_of(pass));
}

void MemoryRecorder::backward_ended(const NamedTensors& replicated) {
  // Autograd made these gradients during the pass, where they counted as activations.
  for (const at::Tensor& parameter : replicated.tensors) {
    if (parameter.grad().defined()) memory_.move(parameter.grad(), MemoryKind::kGradients);
  }
  enter(TrainingPhase::kOther);
  memory_.start_marking();
  watch_.resume();
}

void MemoryRecorder::on_use(const intercept::Use& use) {
  if (std::this_thread::get_id() != thread_) return;
  const std::string_view operator_name = use.operator_name();
  if (!had_pass_) {
    ++num_under_way_;
    if (num_under_way_ > 1 || !makes_another(operator_name)) return;
    makes_state_ = true;
    memory_.start_marking();
    return;
  }
  // An optimizer builds no graph; a forward may begin with a parameter that stays whole.
  if (at::GradMode::is_enabled()) return;
  if (operator_name == "aten::detach" || operator_name == "aten::alias") return;
  if (phase_ == TrainingPhase::kOther) enter(TrainingPhase::kStep);
  if (operator_name.ends_with('_')) memory_.move_marked(MemoryKind::kOptimizer);
}

void MemoryRecorder::on_done() {
  if (std::this_thread::get_id() != thread_ || num_under_way_ == 0) return;
  --num_under_way_;
  if (num_under_way_ > 0) return;
  // Before the first pass: some optimizers create their state at the beginning, in the parameters' shapes.
  if (!std::exchange(makes_state_, false)) return;
  memory_.move_marked(MemoryKind::kOptimizer);
  memory_.stop_marking();
}

void MemoryRecorder::enter(TrainingPhase phase) {
  phases_.push_back(present());
  if (phases_.size() >= max_phases_) phases_.pop_front();
  raise_to(peaks_, memory_.peaks());
  peak_of_all_ = std::max(peak_of_all_, memory_.peak_of_all());
  memory_.reset_peaks();
  phase_ = phase;
  phase_start_ = seconds();
  ++num_phases_;
}

MemoryPhase MemoryRecorder::present() const {
  return {.phase = phase_,
          .start_seconds = phase_start_,
          .seconds = seconds() - phase_start_,
          .at_end = memory_.live(),
          .peaks = memory_.peaks(),
          .peak_of_all = memory_.peak_of_all()};
}

double MemoryRecorder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

MemoryBytes MemoryRecorder::peaks() const {
  MemoryBytes peaks = peaks_;
  raise_to(peaks, memory_.peaks());
  return peaks;
}

std::int64_t MemoryRecorder::peak_of_all() const { return std::max(peak_of_all_, memory_.peak_of_all()); }

std::vector<MemoryPhase> MemoryRecorder::timeline() const {
  std::vector<MemoryPhase> phases(phases_.begin(), phases_.end());
  phases.push_back(present());
  return phases;
}

}  // namespace tessera::fsdp

namespace tessera {
namespace {

constexpr int kNameWidth = 11;
constexpr int kFigureWidth = 12;

double in_mib(std::int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

}  // namespace

const char* name_of(TrainingPhase phase) {
  switch (phase) {
    case TrainingPhase::kOther:
      return "other";
    case TrainingPhase::kForward:
      return "forward";
    case TrainingPhase::kBackward:
      return "backward";
    case TrainingPhase::kStep:
      return "step";
    case TrainingPhase::kEvaluation:
      return "evaluation";
  }
  throw InternalError("no such phase");
}

FsdpMemory::FsdpMemory(const ShardedModel& sharded, std::size_t max_phases)
    : recorder_(fsdp::MemoryRecorder::make(sharded.state(), max_phases)) {}

FsdpMemory::~FsdpMemory() = default;

MemoryBytes FsdpMemory::live() const { return recorder_->memory().live(); }
MemoryBytes FsdpMemory::peaks() const { return recorder_->peaks(); }
std::int64_t FsdpMemory::peak_of_all() const { return recorder_->peak_of_all(); }
std::vector<MemoryPhase> FsdpMemory::timeline() const { return recorder_->timeline(); }
std::uint64_t FsdpMemory::num_phases() const { return recorder_->num_phases(); }

std::string FsdpMemory::text() const {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << std::left << std::setw(kNameWidth) << "peak MiB" << std::right;
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    text << std::setw(kFigureWidth) << name_of(static_cast<MemoryKind>(i));
  }
  text << std::setw(kFigureWidth) << "together" << '\n';
  for (const MemoryPhase& phase : timeline()) {
    text << std::left << std::setw(kNameWidth) << name_of(phase.phase) << std::right;
    for (const std::int64_t num_bytes : phase.peaks.of_kind) text << std::setw(kFigureWidth) << in_mib(num_bytes);
    text << std::setw(kFigureWidth) << in_mib(phase.peak_of_all) << '\n';
  }
  return text.str();
}

}  // namespace tessera
