#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_memory.h>

#include <iomanip>
#include <sstream>

#include "fsdp/memory_recorder.h"

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
