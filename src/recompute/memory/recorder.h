#pragma once

#include <tessera/intercept/operator_trace.h>
#include <tessera/intercept/saved_tensors.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "recompute/memory/saved_model.h"

namespace tessera::recomputation {

/// All models of the process that save memory. LibTorch has one list of callbacks and one default engine, so there is
/// one recorder; while it has no model it costs nothing. Thread-safety: any thread.
class Recorder : public intercept::OperatorTracer, public intercept::SavedTensorKeeper {
 public:
  static Recorder& of_process();

  /// Throws ConfigError when one of its tensors belongs to such a model already.
  void add(const std::shared_ptr<SavedModel>& model);
  void remove(const SavedModel& model) noexcept;

  Depth on_begin(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments) noexcept override;
  void on_draw() noexcept override;
  void on_end(c10::ArrayRef<c10::IValue> results) noexcept override;
  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override;

 private:
  Recorder() = default;
  void rebuild();
  const ModelTable& table_of_thread();

  std::mutex mutex_;
  std::vector<std::shared_ptr<SavedModel>> models_;
  std::shared_ptr<const ModelTable> table_ = std::make_shared<ModelTable>();
  std::atomic<std::uint64_t> version_ = 1;
  std::optional<intercept::OperatorTrace> trace_;
  std::optional<intercept::SavedTensorDefault> keeper_;
};

}  // namespace tessera::recomputation
