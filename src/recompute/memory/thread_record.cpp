#include "recompute/memory/thread_record.h"

#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/operator_call.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "recompute/memory/cheap_operators.h"

namespace tessera::recomputation {

void ThreadRecord::note_model_memory(const at::Tensor& tensor) {
  const c10::StorageImpl* const memory = memory_of(tensor);
  if (memory != nullptr && !model_memory_.contains(memory)) model_memory_.emplace(memory, weak_memory(memory));
}

ThreadRecord::Depth ThreadRecord::begin(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments,
                                        std::optional<int> part, const c10::TensorImpl* parameter) {
  pending_.reset();
  look_around();
  if (part) enter_part(*part, parameter);
  bool acts = false;
  for_each_tensor(arguments, [&](std::size_t, const at::Tensor& tensor) {
    acts = acts || intercept::acting_data(tensor) != nullptr;
  });
  // What a kind computes instead is recorded, not what the program asked for: tensors that do not act, and nothing that
  // communicates.
  if (acts) return Depth::kInside;
  bool is_recorded = false;
  Depth otherwise = Depth::kWhole;
  if (at::GradMode::is_enabled() && may_be_replayed(op, arguments)) {
    take_arguments(op, arguments);
    is_recorded = records(*pending_, arguments, otherwise);
  }
  note_writes(op, arguments, is_recorded);
  if (is_recorded) return Depth::kWhole;
  pending_.reset();
  return otherwise;
}

void ThreadRecord::pass_by(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments) {
  pending_.reset();
  look_around();
  bool is_recorded = false;
  note_writes(op, arguments, is_recorded);
}

void ThreadRecord::take_arguments(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments) {
  pending_.emplace();
  pending_->op = &op;
  pending_->arguments.assign(arguments.begin(), arguments.end());
  const auto copied = running_statistics(op, arguments);
  for (std::size_t i = copied.first; i < copied.second; ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::NoGradGuard no_grad;
    pending_->arguments[i] = c10::IValue(arguments[i].toTensor().clone());
  }
  for_each_tensor(pending_->arguments, [&](std::size_t index, const at::Tensor& tensor) {
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
    const bool is_copy = index >= copied.first && index < copied.second;
    pending_->taken.push_back({tensor, version_of(tensor), tensor.requires_grad(), is_copy});
  });
}

void ThreadRecord::note_writes(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments,
                               bool& is_recorded) {
  if (op.written == 0) return;
  for_each_tensor(arguments, [&](std::size_t index, const at::Tensor& tensor) {
    const c10::StorageImpl* const memory = op.writes(index) ? memory_of(tensor) : nullptr;
    if (memory == nullptr) return;
    note_write(tensor, memory, is_recorded);
    const auto [begin, end] = holders_.equal_range(memory);
    for (auto one = begin; one != end; ++one) {
      // The one under way may have taken a copy.
      if (const auto region = one->second.region.lock(); region && region->has_from_outside(memory)) {
        region->spoil(op.name() +
                      " has changed a tensor in place that is needed to compute activations again: run backward "
                      "first, or use the form of the operator that is not in place");
      }
    }
  });
}

void ThreadRecord::note_holder(const at::Tensor& tensor, const std::shared_ptr<Region>& region) {
  const c10::StorageImpl* const memory = memory_of(tensor);
  // Parameters in memory that others share, as in shards, are written to when they are gathered.
  if (memory == nullptr || (is_of_model(memory) && memory->nbytes() != tensor.nbytes())) return;
  if (holders_.size() >= purge_at_) {
    std::erase_if(holders_, [](const auto& one) { return one.second.region.expired(); });
    purge_at_ = std::max<std::size_t>(256, 2 * holders_.size());
  }
  holders_.emplace(memory, Holder{weak_memory(memory), region});
}

void ThreadRecord::draw() {
  if (pending_ && !pending_->random) pending_->random = RandomState::now(std::vector<at::Tensor>{});
}

void ThreadRecord::end(c10::ArrayRef<c10::IValue> results) {
  if (!pending_) return;
  PendingOperator op = std::move(*pending_);
  pending_.reset();
  finish(op, results);
}

void ThreadRecord::pack(const std::shared_ptr<SavedBody>& body, const at::Tensor& tensor) {
  if (pending_) {
    pending_->bodies.push_back(body);
    pending_->saved.emplace_back(tensor);
  }
  pack_now(*body, tensor);
}

void ThreadRecord::keep(SavedBody& body, const at::Tensor& tensor) const {
  // Without its node, which owns the slot.
  body.kept = Kept(tensor.tensor_data(), is_of_model(memory_of(tensor)) ? nullptr : model_->tally);
}

bool ThreadRecord::is_taken(const PendingOperator& op, const c10::StorageImpl* memory) {
  return std::ranges::any_of(op.taken, [memory](const auto& one) { return memory_of(one.tensor) == memory; });
}

RecordedOperator ThreadRecord::recorded(PendingOperator& op) {
  RecordedOperator recorded{op.op->handle, std::move(op.arguments), {}, {}, std::move(op.saved), nullptr, op.random, 0};
  if (op.random) recorded.random_digest_after = op.random->now().digest();
  // One object as long as the settings are the same.
  if (AutocastState now = AutocastState::now(); !autocast_ || !(*autocast_ == now)) {
    autocast_ = std::make_shared<const AutocastState>(std::move(now));
  }
  recorded.autocast = autocast_;
  thread_local const at::Tensor placeholder = at::empty({0});
  intercept::OperatorCall call(recorded.handle, recorded.arguments);
  call.for_each_tensor([](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? at::Tensor() : placeholder;
  });
  return recorded;
}

}  // namespace tessera::recomputation
