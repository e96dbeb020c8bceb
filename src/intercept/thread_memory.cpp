#include <tessera/core/error.h>
#include <tessera/intercept/thread_memory.h>

#include <iomanip>
#include <sstream>
#include <utility>

#include "intercept/counting_allocator.h"
#include "intercept/ledger.h"

namespace tessera {

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParameters:
      return "parameters";
    case MemoryKind::kGathered:
      return "gathered";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kSpare:
      return "spare";
  }
  throw InternalError("no such kind of memory");
}

namespace intercept {

std::string no_memory_text(std::size_t num_bytes, const MemoryBytes& live, const std::string& owner,
                           const std::string& advice) {
  constexpr double kMib = 1 << 20;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "there is no memory for " << static_cast<double>(num_bytes) / kMib
       << " MiB more on " << owner << ", which holds";
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    text << (i == 0 ? " " : ", ") << static_cast<double>(live.of_kind[i]) / kMib << " MiB of "
         << name_of(static_cast<MemoryKind>(i));
  }
  if (!advice.empty()) text << ". " << advice;
  return text.str();
}

ThreadMemory::ThreadMemory() : ledger_(std::make_shared<Ledger>()) {
  CountingAllocator::of_process().start_thread(ledger_);
}

ThreadMemory::~ThreadMemory() { CountingAllocator::of_process().stop_thread(); }

MemoryBytes ThreadMemory::live() const { return ledger_->live(); }
MemoryBytes ThreadMemory::peaks() const { return ledger_->peaks(); }
std::int64_t ThreadMemory::peak_of_all() const { return ledger_->peak_of_all(); }
void ThreadMemory::reset_peaks() { ledger_->reset_peaks(); }

void ThreadMemory::add(MemoryKind kind, std::int64_t num_bytes) { ledger_->add(kind, num_bytes); }

void ThreadMemory::move(const at::Tensor& tensor, MemoryKind kind) {
  CountingAllocator::of_process().move(tensor.storage().data(), ledger_, kind);
}

void ThreadMemory::start_marking() {
  ledger_->marked.clear();
  ledger_->marks = true;
}

void ThreadMemory::stop_marking() {
  ledger_->marked.clear();
  ledger_->marks = false;
}

void ThreadMemory::move_marked(MemoryKind kind) { CountingAllocator::of_process().move_marked(ledger_, kind); }

void ThreadMemory::explain_failures(const std::string& owner, const std::string& advice) {
  ledger_->owner = owner;
  ledger_->advice = advice;
}

ThreadMemory::Scope::Scope(ThreadMemory& memory, MemoryKind kind)
    : ledger_(memory.ledger_), outer_(std::exchange(ledger_->kind_of_new, kind)) {}

ThreadMemory::Scope::~Scope() { ledger_->kind_of_new = outer_; }

}  // namespace intercept
}  // namespace tessera
