#include "intercept/device_reports.h"

#include <tessera/core/error.h>
#include <tessera/intercept/thread_memory.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include "intercept/counting_allocator.h"

namespace tessera::intercept {
namespace {

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

thread_local int num_counted_elsewhere = 0;

}  // namespace

CountedElsewhere::CountedElsewhere() { ++num_counted_elsewhere; }
CountedElsewhere::~CountedElsewhere() { --num_counted_elsewhere; }

/// LibTorch takes whatever is in the place of the profiler for one of this type.
class DeviceReports::Receiver final : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit Receiver(std::shared_ptr<Ledger> ledger)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)), ledger_(std::move(ledger)) {}

  void reportMemoryUsage(void* block, std::int64_t num_bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (device.is_cpu()) return;
    const auto ledger = this->ledger();
    if (!ledger) return;
    auto& blocks = CountingAllocator::of_process();
    if (num_bytes < 0) {
      blocks.was_freed(block);
    } else if (num_counted_elsewhere == 0) {
      blocks.was_made(block, num_bytes, ledger);
    }
  }

  void reportOutOfMemory(std::int64_t num_bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    const auto ledger = this->ledger();
    if (!ledger || device.is_cpu()) return;
    throw StorageError(ledger->why_no_memory(static_cast<std::size_t>(num_bytes)) + " (" + device.str() + ")");
  }

  bool memoryProfilingEnabled() const override { return true; }
  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }

  /// Threads that work for the one that counts may keep this for longer.
  std::shared_ptr<Ledger> end() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ledger_, nullptr);
  }

 private:
  std::shared_ptr<Ledger> ledger() {
    const std::lock_guard lock(mutex_);
    return ledger_;
  }

  std::mutex mutex_;
  std::shared_ptr<Ledger> ledger_;
};

DeviceReports::DeviceReports(const std::shared_ptr<Ledger>& ledger) : receiver_(std::make_shared<Receiver>(ledger)) {
  if (ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) != nullptr) {
    throw ConfigError(
        "the memory of devices cannot be counted: a profiler records on this thread, and devices tell of their memory "
        "to one of both alone. Count while no profiler records");
  }
  ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, receiver_);
}

DeviceReports::~DeviceReports() {
  if (const auto ledger = receiver_->end()) CountingAllocator::of_process().forget(ledger);
  // Below others it stays, and does nothing.
  if (ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) != receiver_.get()) return;
  try {
    ThreadLocalDebugInfo::_pop(DebugInfoKind::PROFILER_STATE);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): likewise
  }
}

}  // namespace tessera::intercept
