#include "recompute/memory/recorder.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/backward_pass.h>

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "recompute/memory/thread_record.h"

namespace tessera::recomputation {
namespace {

/// What this thread's forward has done. Other threads have records of their own.
struct OfThread {
  std::shared_ptr<const ModelTable> table;
  std::uint64_t version = 0;
  std::unique_ptr<ThreadRecord> record;  // of the model whose parameter was taken last; null: none
  bool is_active = false;                // and no other model's since
  bool was_backward = false;             // since the last operator that was seen
  std::exception_ptr error;              // of a callback, which must not throw
};

OfThread& of_thread() {
  thread_local OfThread state;
  return state;
}

class SavedSlot : public intercept::SavedTensorSlot {
 public:
  void pack(const at::Tensor& tensor) override {
    OfThread& thread = of_thread();
    if (thread.error) std::rethrow_exception(std::exchange(thread.error, nullptr));
    if (thread.record) return thread.record->pack(body_, tensor);
    body_->kept = Kept(tensor.tensor_data(), nullptr);
  }
  at::Tensor unpack() override {
    of_thread().was_backward = true;
    return body_->again ? body_->again->tensor() : body_->kept.get();
  }

 private:
  std::shared_ptr<SavedBody> body_ = std::make_shared<SavedBody>();
};

/// The tensors of a model that an operator takes.
struct Found {
  const ModelTable::Place* place = nullptr;
  const c10::TensorImpl* parameter = nullptr;
  bool is_foreign = false;  // a parameter of no such model
};

}  // namespace

Recorder& Recorder::of_process() {
  static auto* const recorder = new Recorder;  // never destroyed: operators may run while the process ends
  return *recorder;
}

void Recorder::add(const std::shared_ptr<SavedModel>& model) {
  const std::lock_guard lock(mutex_);
  for (const SavedModel::Member& member : model->members) {
    const auto found = table_->places.find(member.tensor._unsafe_get_target());
    if (found == table_->places.end() || found->second.tensor.expired()) continue;
    throw ConfigError(
        "save_memory() was called for this model already, or for one that shares a parameter with it: end the former "
        "one first, or give both as one model");
  }
  models_.push_back(model);
  rebuild();
  if (trace_) return;
  trace_.emplace(*this);
  keeper_.emplace(*this);
}

void Recorder::remove(const SavedModel& model) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(models_, [&model](const auto& one) { return one.get() == &model; });
  rebuild();
  if (!models_.empty()) return;
  keeper_.reset();
  trace_.reset();
}

void Recorder::rebuild() {
  auto table = std::make_shared<ModelTable>();
  for (const auto& model : models_) {
    for (const SavedModel::Member& member : model->members) {
      table->places.insert_or_assign(member.tensor._unsafe_get_target(),
                                     ModelTable::Place{model, member.part, member.tensor});
    }
  }
  table_ = std::move(table);
  version_.fetch_add(1, std::memory_order_release);
}

const ModelTable& Recorder::table_of_thread() {
  OfThread& thread = of_thread();
  if (const auto version = version_.load(std::memory_order_acquire); thread.version != version) {
    const std::lock_guard lock(mutex_);
    thread.version = version_;
    thread.table = table_;
    // A model that was given up keeps nothing here.
    thread.record = nullptr;
    thread.is_active = false;
  }
  return *thread.table;
}

namespace {

Found find_parameters(const ModelTable& table, c10::ArrayRef<c10::IValue> arguments, ThreadRecord* record) {
  Found found;
  for_each_tensor(arguments, [&](std::size_t, const at::Tensor& tensor) {
    const ModelTable::Place* const place = table.find(tensor);
    if (!place) {
      found.is_foreign = found.is_foreign || (tensor.is_leaf() && tensor.requires_grad());
      return;
    }
    if (record && record->model() == place->model) record->note_model_memory(tensor);
    // Buffers and parameters outside of the parts say less than those inside.
    if (found.place && found.place->part >= 0) return;
    found.place = place;
    found.parameter = tensor.unsafeGetTensorImpl();
  });
  return found;
}

}  // namespace

intercept::OperatorTracer::Depth Recorder::on_begin(const intercept::TracedOperator& op,
                                                    c10::ArrayRef<c10::IValue> arguments) noexcept {
  OfThread& thread = of_thread();
  try {
    const ModelTable& table = table_of_thread();
    if (std::exchange(thread.was_backward, false) && thread.record) thread.record->after_backward();
    Found found = find_parameters(table, arguments, thread.record.get());
    if (found.place && (!thread.record || thread.record->model() != found.place->model)) {
      thread.record = found.place->model->whole_parts ? make_part_record(found.place->model)
                                                      : make_operator_record(found.place->model);
      found = find_parameters(table, arguments, thread.record.get());
    }
    if (found.place) thread.is_active = true;
    if (!found.place && found.is_foreign) thread.is_active = false;
    if (!thread.record) return Depth::kWhole;
    if (!thread.is_active) {
      // Its record stays, to see what is written to its tensors.
      thread.record->pass_by(op, arguments);
      return Depth::kWhole;
    }
    const auto part = found.place ? std::optional(found.place->part) : std::nullopt;
    return thread.record->begin(op, arguments, part, found.parameter);
  } catch (...) {
    thread.error = std::current_exception();
    thread.record = nullptr;
    thread.is_active = false;
    return Depth::kWhole;
  }
}

void Recorder::on_draw() noexcept {
  OfThread& thread = of_thread();
  try {
    if (thread.record) thread.record->draw();
  } catch (...) {
    thread.error = std::current_exception();
  }
}

void Recorder::on_end(c10::ArrayRef<c10::IValue> results) noexcept {
  OfThread& thread = of_thread();
  try {
    if (thread.record) thread.record->end(results);
  } catch (...) {
    thread.error = std::current_exception();
  }
}

std::unique_ptr<intercept::SavedTensorSlot> Recorder::make_slot() {
  // A graph of gradients keeps what it saves, as usual.
  const OfThread& thread = of_thread();
  if (!thread.error && (!thread.is_active || !thread.record)) return nullptr;
  if (intercept::in_backward()) return nullptr;
  return std::make_unique<SavedSlot>();
}

}  // namespace tessera::recomputation
