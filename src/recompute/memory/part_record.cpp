#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "recompute/memory/thread_record.h"

namespace tessera::recomputation {
namespace {

/// Note [Where a part begins and ends]
/// Modules of C++ do not tell when their forward begins. A part begins with the first operator that takes a parameter
/// of its module, and ends where an operator takes a parameter of another one; operators without parameters belong to
/// the part that is under way. When the parameter with which it began is used again after others, as by a layer that
/// is applied many times, another part begins. Gradients do not depend on where the borders are: what enters is kept,
/// wherever it comes from. Only how much is kept depends on it.
class PartRecord : public ThreadRecord {
 public:
  using ThreadRecord::ThreadRecord;

  /// So that what entered the part that was under way lives no longer than its graph.
  void after_backward() override { leave(); }

 protected:
  void look_around() override {
    if (region_ && region_->is_over()) leave();
  }

  void enter_part(int part, const c10::TensorImpl* parameter) override {
    const bool goes_on = region_ && part == part_ && (parameter != first_ || !has_others_);
    has_others_ = has_others_ || parameter != first_;
    if (goes_on) return;
    leave();
    if (part < 0 || !at::GradMode::is_enabled()) return;
    part_ = part;
    first_ = parameter;
    has_others_ = false;
    region_ = std::make_shared<Region>(model()->parts[static_cast<std::size_t>(part)], model()->tally);
  }

  bool records(const PendingOperator& op, c10::ArrayRef<c10::IValue> /*arguments*/, Depth& /*otherwise*/) override {
    return region_ && std::ranges::any_of(op.taken, [](const auto& one) { return one.requires_grad; });
  }

  void note_write(const at::Tensor& tensor, const c10::StorageImpl* memory, bool& is_recorded) override {
    if (!region_) return;
    if (is_recorded && inside_.contains(memory) && known(tensor)) {
      pending_->written.push_back(memory);
      return;
    }
    is_recorded = false;
    lose(memory);
  }

  void pack_now(SavedBody& body, const at::Tensor& tensor) override { keep(body, tensor); }

  void finish(PendingOperator& op, c10::ArrayRef<c10::IValue> results) override {
    bool has_history = false;
    bool has_memory = true;
    for_each_tensor(results, [&](std::size_t, const at::Tensor& result) {
      has_history = has_history || result.requires_grad();
      has_memory = has_memory && memory_of(result) != nullptr;
    });
    // The schemas of some operators do not say what they write.
    for (const auto& one : op.taken) {
      const c10::StorageImpl* const memory = memory_of(one.tensor);
      if (version_of(one.tensor) == one.version || std::ranges::find(op.written, memory) != op.written.end()) continue;
      has_history = false;
      op.written.push_back(memory);
    }
    if (!has_history || !has_memory) {
      for (const c10::StorageImpl* const memory : op.written) lose(memory);
      return;
    }
    RecordedOperator done = recorded(op);
    for (const auto& one : op.taken) done.taken.push_back({value_of(one), one.requires_grad});
    for_each_tensor(results, [&](std::size_t, const at::Tensor& result) { done.given.push_back(given(result)); });
    region_->add(std::move(done));
    for (std::size_t i = 0; i < op.bodies.size(); ++i) {
      SavedBody& body = *op.bodies[i];
      if (!body.kept.tensor().defined()) continue;
      const c10::StorageImpl* const memory = memory_of(body.kept.tensor());
      if (memory == nullptr || is_of_model(memory) || region_->has_from_outside(memory)) continue;
      if (const auto inside = inside_.find(memory); inside != inside_.end()) inside->second.has_dropped = true;
      body.again = std::make_shared<Recomputed>(region_, region_->want_saved(i));
      body.kept.release();
    }
  }

 private:
  struct Known {
    WeakTensor tensor;
    Value value;
    const c10::StorageImpl* memory;
    std::uint32_t version;
    bool is_inside;
  };

  /// Of values that are replayed.
  struct InsideMemory {
    WeakMemory memory;
    bool has_dropped = false;  // tensors in it that autograd has saved
  };

  void leave() {
    region_ = nullptr;
    values_.clear();
    inside_.clear();
  }

  /// An operator that is not replayed writes there. What it holds from now on enters from outside.
  void lose(const c10::StorageImpl* memory) {
    if (const auto inside = inside_.find(memory); inside != inside_.end()) {
      if (inside->second.has_dropped) {
        region_->spoil("the forward of " + model()->parts[static_cast<std::size_t>(part_)] +
                       " changes a tensor in place where that cannot be replayed, as data(), NoGradGuard and detach_() "
                       "do: leave this module out, or use the form of the operator that is not in place");
      }
      inside_.erase(inside);
    }
    if (region_->has_from_outside(memory)) region_->keep_copy_of(memory);
    std::erase_if(values_, [memory](const auto& one) { return one.second.memory == memory; });
  }

  const Known* known(const at::Tensor& tensor) const {
    const auto found = values_.find(tensor.unsafeGetTensorImpl());
    return found == values_.end() ? nullptr : &found->second;
  }

  Value value_of(const PendingOperator::Argument& taken) {
    const Known* const found = known(taken.tensor);
    // What was written to from outside in the meantime is another value.
    if (found && (found->is_inside || found->version == taken.version)) return found->value;
    const c10::StorageImpl* const memory = memory_of(taken.tensor);
    const Value value = region_->add_outside(taken.tensor, is_of_model(memory));
    note_holder(taken.tensor, region_);
    remember(taken.tensor, {weak(taken.tensor), value, memory, taken.version, false});
    return value;
  }

  Value given(const at::Tensor& result) {
    if (const Known* const found = known(result)) return found->value;
    const c10::StorageImpl* const memory = memory_of(result);
    const Value value = region_->add_inside();
    remember(result, {weak(result), value, memory, version_of(result), true});
    if (!inside_.contains(memory) && !region_->has_from_outside(memory)) {
      inside_.emplace(memory, InsideMemory{weak_memory(memory)});
    }
    return value;
  }

  void remember(const at::Tensor& tensor, Known known) {
    values_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(known));
  }

  std::shared_ptr<Region> region_;
  int part_ = -1;
  const c10::TensorImpl* first_ = nullptr;  // with which the part began
  bool has_others_ = false;
  std::unordered_map<const c10::TensorImpl*, Known> values_;
  std::unordered_map<const c10::StorageImpl*, InsideMemory> inside_;
};

}  // namespace

std::unique_ptr<ThreadRecord> make_part_record(std::shared_ptr<SavedModel> model) {
  return std::make_unique<PartRecord>(std::move(model));
}

}  // namespace tessera::recomputation
