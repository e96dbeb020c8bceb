#pragma once

#include <tessera/intercept/operator_trace.h>
#include <tessera/intercept/saved_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "recompute/memory/region.h"
#include "recompute/memory/saved_model.h"

namespace tessera::recomputation {

/// What became of a tensor that autograd saves. Of one slot; also known to the record of the thread while the operator
/// runs that saves it.
struct SavedBody {
  Kept kept{};
  std::shared_ptr<Recomputed> again = nullptr;  // instead
};

/// An operator that runs, and may be recorded when it has ended.
struct PendingOperator {
  struct Argument {
    at::Tensor tensor;
    std::uint32_t version;
    bool requires_grad;
    bool is_copy;  ///< for the second run only, which writes to it
  };
  const intercept::TracedOperator* op = nullptr;
  torch::jit::Stack arguments{};
  std::vector<Argument> taken{};
  std::vector<std::shared_ptr<SavedBody>> bodies{};
  std::vector<SavedTensor> saved{};
  std::shared_ptr<const AutocastState> autocast = nullptr;
  std::optional<RandomState> random = std::nullopt;
  std::vector<const c10::StorageImpl*> written{};  // of memory whose values are replayed
};

/// Visits the tensors of values as OperatorCall::for_each_tensor() does.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) {
      if (values[i].toTensor().defined()) visit(i, values[i].toTensor());
    } else if (values[i].isList()) {
      for (const c10::IValue& one : values[i].toListRef()) {
        if (one.isNone()) continue;
        if (!one.isTensor()) break;
        if (one.toTensor().defined()) visit(i, one.toTensor());
      }
    }
  }
}

/// What one thread's forward has done so far, of the model whose parameter an operator took last. One of two ways to
/// save memory. Thread-safety: of one thread.
class ThreadRecord {
 public:
  using Depth = intercept::OperatorTracer::Depth;

  explicit ThreadRecord(std::shared_ptr<SavedModel> model) : model_(std::move(model)) {}
  virtual ~ThreadRecord() = default;
  ThreadRecord(const ThreadRecord&) = delete;
  ThreadRecord& operator=(const ThreadRecord&) = delete;

  const std::shared_ptr<SavedModel>& model() const { return model_; }

  /// `part`: of a parameter of the model that the operator takes; none: it takes none.
  Depth begin(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments, std::optional<int> part,
              const c10::TensorImpl* parameter);
  /// An operator that has nothing to do with the model.
  void pass_by(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments);
  void draw();
  void end(c10::ArrayRef<c10::IValue> results);
  void pack(const std::shared_ptr<SavedBody>& body, const at::Tensor& tensor);
  /// A backward pass has begun since the last operator.
  virtual void after_backward() {}
  void note_model_memory(const at::Tensor& tensor);

 protected:
  /// An operator begins, whatever it is.
  virtual void look_around() {}
  virtual void enter_part(int /*part*/, const c10::TensorImpl* /*parameter*/) {}
  /// Whether the operator is to be recorded, and if not, whether those that it calls may be.
  virtual bool records(const PendingOperator& op, c10::ArrayRef<c10::IValue> arguments, Depth& otherwise) = 0;
  /// An operator is about to write there. `is_recorded`: by records().
  virtual void note_write(const at::Tensor& tensor, const c10::StorageImpl* memory, bool& is_recorded) = 0;
  virtual void finish(PendingOperator& op, c10::ArrayRef<c10::IValue> results) = 0;
  virtual void pack_now(SavedBody& body, const at::Tensor& tensor) = 0;

  bool is_of_model(const c10::StorageImpl* memory) const { return model_memory_.contains(memory); }
  void keep(SavedBody& body, const at::Tensor& tensor) const;
  /// The operator as it is to be replayed, without its values.
  RecordedOperator recorded(PendingOperator& op);
  void note_holder(const at::Tensor& tensor, const std::shared_ptr<Region>& region);
  /// Whether the operator that runs takes a tensor that lies there.
  static bool is_taken(const PendingOperator& op, const c10::StorageImpl* memory);

  std::optional<PendingOperator> pending_;

 private:
  struct Holder {
    WeakMemory memory;
    std::weak_ptr<Region> region;
  };

  void note_writes(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments, bool& is_recorded);
  void take_arguments(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments);

  std::shared_ptr<SavedModel> model_;
  std::shared_ptr<const AutocastState> autocast_;
  std::unordered_map<const c10::StorageImpl*, WeakMemory> model_memory_;
  std::unordered_multimap<const c10::StorageImpl*, Holder> holders_;
  std::size_t purge_at_ = 256;
};

/// Records whole parts of the model.
std::unique_ptr<ThreadRecord> make_part_record(std::shared_ptr<SavedModel> model);
/// Records cheap operators one by one.
std::unique_ptr<ThreadRecord> make_operator_record(std::shared_ptr<SavedModel> model);

}  // namespace tessera::recomputation
