#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recompute/memory/cheap_operators.h"
#include "recompute/memory/thread_record.h"

namespace tessera::recomputation {
namespace {

/// Tensors of so few numbers are kept without a question.
constexpr std::int64_t kFewNumbers = 16;
/// What is this many times smaller than an operator's result is kept, as the mean and deviation of a norm: to run the
/// operator again for it alone would cost more.
constexpr std::int64_t kSmall = 8;

/// Note [What of an operator need not be kept]
/// A cheap operator can run again if what it takes is kept anyway: a parameter, a tensor that some node has saved, or
/// something that can be computed again in turn. Then nothing is kept of what it gives, and none of the larger tensors
/// that it saves itself, as a mask. Otherwise what it gives is kept when a node saves it, as ever: to keep its input
/// instead would save nothing. The mask of a dropout can be drawn again whatever it is applied to.
///
/// A candidate holds nothing that would live longer by it. Its region, which does, is made when the first tensor is
/// dropped.
struct Candidate {
  struct Input {
    WeakTensor base;                        // a tensor in the same memory
    at::Tensor strong{};                    // instead: of few numbers, or of the model
    std::shared_ptr<Candidate> computed{};  // instead: with the number of its result
    std::size_t given = 0;
    std::optional<Geometry> geometry{};
    std::uint32_t version = 0;
    std::uint64_t serial = 0;  // of the kept memory
    bool is_of_model = false;
  };
  std::string name;
  RecordedOperator op;
  std::vector<Input> inputs{};
  std::weak_ptr<Region> region{};
};

/// Something that a cheap operator has given.
struct Produced {
  WeakMemory memory;
  std::shared_ptr<Candidate> by;
  std::size_t given;
  WeakTensor root;  // the tensor that it and its views are views of
  std::uint32_t version;
  c10::ScalarType dtype;
};

struct KeptMemory {
  WeakMemory memory;
  WeakTensor tensor;
  std::uint32_t version;
  c10::ScalarType dtype;
  std::uint64_t serial;
};

at::Tensor root_of(const at::Tensor& tensor) { return tensor.is_view() ? at::Tensor(tensor._base()) : tensor; }

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

class OperatorRecord : public ThreadRecord {
 public:
  using ThreadRecord::ThreadRecord;

 protected:
  bool records(const PendingOperator& op, c10::ArrayRef<c10::IValue> /*arguments*/, Depth& otherwise) override {
    otherwise = Depth::kInside;
    return is_cheap(*op.op);
  }

  void note_write(const at::Tensor& /*tensor*/, const c10::StorageImpl* memory, bool& /*is_recorded*/) override {
    kept_.erase(memory);
    const auto found = produced_.find(memory);
    if (found == produced_.end()) return;
    if (const auto region = found->second.by->region.lock()) {
      region->spoil("what " + found->second.by->name +
                    " has computed was changed in place after it was taken for something that backward computes "
                    "again: use the form of the operator that is not in place");
    }
    produced_.erase(found);
  }

  void pack_now(SavedBody& body, const at::Tensor& tensor) override {
    body.again = recomputed(tensor);
    if (body.again) return;
    keep(body, tensor);
    const c10::StorageImpl* const memory = memory_of(tensor);
    if (memory == nullptr || is_of_model(memory)) return;
    purge();
    kept_.insert_or_assign(memory, KeptMemory{weak_memory(memory), weak(body.kept.tensor()), version_of(tensor),
                                              tensor.scalar_type(), ++last_serial_});
  }

  void finish(PendingOperator& op, c10::ArrayRef<c10::IValue> results) override {
    if (results.empty()) return;
    auto candidate = std::make_shared<Candidate>(Candidate{op.op->name(), recorded(op)});
    for (const auto& one : op.taken) {
      candidate->op.taken.push_back({candidate->op.taken.size(), one.requires_grad});
    }
    std::vector<at::Tensor> given;
    for_each_tensor(results, [&](std::size_t, const at::Tensor& one) {
      candidate->op.given.push_back(op.taken.size() + given.size());
      given.push_back(one);
    });
    const bool runs_again = std::ranges::all_of(op.taken, [&](const auto& one) { return add_input(*candidate, one); });
    if (runs_again) {
      drop_saved(op, given, candidate, nullptr);
      for (std::size_t i = 0; i < given.size(); ++i) note_produced(op, given[i], i, candidate);
    } else if (is_dropout(*op.op) && op.taken.size() == 1) {
      drop_saved(op, given, candidate, &op.taken.front().tensor);
    }
  }

 private:
  /// Null: it cannot be computed again.
  std::shared_ptr<Recomputed> recomputed(const at::Tensor& tensor) {
    const Produced* const found = produced(tensor);
    if (!found) return nullptr;
    const auto region = region_of(*found->by);
    if (!region) return nullptr;
    return std::make_shared<Recomputed>(region, region->want_given(found->given, Geometry(tensor)));
  }

  /// Of the tensor itself or a view of it: what only shares the memory may be something else, as a sum over ranks is.
  const Produced* produced(const at::Tensor& tensor) const {
    const auto found = produced_.find(memory_of(tensor));
    if (found == produced_.end() || tensor.is_conj() || tensor.is_neg()) return nullptr;
    const Produced& one = found->second;
    const bool is_it = one.version == version_of(tensor) && one.dtype == tensor.scalar_type() &&
                       one.root._unsafe_get_target() == root_of(tensor).unsafeGetTensorImpl();
    return is_it ? &one : nullptr;
  }

  bool add_input(Candidate& candidate, const PendingOperator::Argument& taken) const {
    const at::Tensor& tensor = taken.tensor;
    const c10::StorageImpl* const memory = memory_of(tensor);
    if (memory == nullptr || tensor.is_conj() || tensor.is_neg()) return false;
    Candidate::Input input{weak(tensor)};
    input.version = taken.version;
    input.is_of_model = is_of_model(memory);
    if (taken.is_copy) {
      input.strong = tensor;
    } else if (input.is_of_model) {
      input.strong = tensor.is_leaf() ? tensor : tensor.detach();
    } else if (tensor.numel() <= kFewNumbers) {
      const at::NoGradGuard no_grad;
      input.strong = tensor.clone();
      input.version = version_of(input.strong);
    } else if (const Produced* const found = produced(tensor)) {
      input.computed = found->by;
      input.given = found->given;
      input.geometry.emplace(tensor);
    } else if (const auto kept = kept_.find(memory); kept != kept_.end() && kept->second.version == taken.version &&
                                                     kept->second.dtype == tensor.scalar_type() &&
                                                     !kept->second.tensor.expired()) {
      input.base = kept->second.tensor;
      input.serial = kept->second.serial;
      input.geometry.emplace(tensor);
    } else {
      return false;
    }
    candidate.inputs.push_back(std::move(input));
    return true;
  }

  /// Null: something that it takes is gone, or was changed in place.
  std::shared_ptr<Region> region_of(Candidate& candidate) {
    if (auto made = candidate.region.lock()) return made;
    auto region = std::make_shared<Region>(candidate.name + " in the forward", model()->tally);
    for (const Candidate::Input& input : candidate.inputs) {
      if (input.computed) {
        const auto from = region_of(*input.computed);
        if (!from) return nullptr;
        region->add_computed(std::make_shared<Recomputed>(from, from->want_given(input.given, *input.geometry)));
        continue;
      }
      const at::Tensor tensor = input.strong.defined() ? input.strong : tensor_of(input);
      if (!tensor.defined() || version_of(tensor) != input.version) return nullptr;
      region->add_outside(tensor, input.is_of_model);
      note_holder(tensor, region);
    }
    return complete(candidate, std::move(region));
  }

  std::shared_ptr<Region> complete(Candidate& candidate, std::shared_ptr<Region> region) {
    for (std::size_t i = 0; i < candidate.op.given.size(); ++i) region->add_inside();
    region->add(candidate.op);
    candidate.region = region;
    return region;
  }

  at::Tensor tensor_of(const Candidate::Input& input) const {
    auto base = input.base.lock();
    if (!base) return {};
    const at::Tensor tensor(std::move(base));
    const auto kept = kept_.find(memory_of(tensor));
    if (kept == kept_.end() || kept->second.serial != input.serial) return {};
    const at::NoGradGuard no_grad;
    return tensor.as_strided(input.geometry->sizes, input.geometry->strides, input.geometry->offset);
  }

  /// `masked`: only what does not depend on the numbers of this tensor, which the operator takes.
  void drop_saved(PendingOperator& op, const std::vector<at::Tensor>& given,
                  const std::shared_ptr<Candidate>& candidate, const at::Tensor* masked) {
    std::int64_t largest = 0;
    for (const at::Tensor& one : given) largest = std::max(largest, bytes_of(one));
    std::shared_ptr<Region> region;
    for (std::size_t i = 0; i < op.bodies.size(); ++i) {
      SavedBody& body = *op.bodies[i];
      const at::Tensor& tensor = body.kept.tensor();
      if (!tensor.defined() || bytes_of(tensor) * kSmall < largest) continue;
      const c10::StorageImpl* const memory = memory_of(tensor);
      if (memory == nullptr || is_of_model(memory) || is_taken(op, memory)) continue;
      const auto result = std::ranges::find_if(given, [&](const auto& one) { return memory_of(one) == memory; });
      const bool is_given = result != given.end();
      if (is_given && (masked != nullptr || result->scalar_type() != tensor.scalar_type())) continue;
      if (!region) region = masked != nullptr ? with_stand_in(*candidate, *masked) : region_of(*candidate);
      if (!region) return;
      const std::size_t number =
          is_given ? region->want_given(static_cast<std::size_t>(result - given.begin()), Geometry(tensor))
                   : region->want_saved(i);
      body.again = std::make_shared<Recomputed>(region, number);
      body.kept.release();
    }
  }

  std::shared_ptr<Region> with_stand_in(Candidate& candidate, const at::Tensor& masked) {
    auto region = std::make_shared<Region>(candidate.name + " in the forward", model()->tally);
    region->add_stand_in(masked);
    return complete(candidate, std::move(region));
  }

  void note_produced(const PendingOperator& op, const at::Tensor& result, std::size_t given,
                     const std::shared_ptr<Candidate>& candidate) {
    const c10::StorageImpl* const memory = memory_of(result);
    // See Note [What can be replayed].
    if (memory == nullptr || !result.requires_grad() || is_taken(op, memory)) return;
    purge();
    produced_.insert_or_assign(memory, Produced{weak_memory(memory), candidate, given, weak(root_of(result)),
                                                version_of(result), result.scalar_type()});
  }

  /// Forgets what is gone, now and then.
  void purge() {
    if (produced_.size() + kept_.size() < purge_at_) return;
    std::erase_if(produced_, [](const auto& one) { return one.second.memory.expired(); });
    std::erase_if(kept_, [](const auto& one) { return one.second.tensor.expired(); });
    purge_at_ = std::max<std::size_t>(256, 2 * (produced_.size() + kept_.size()));
  }

  std::unordered_map<const c10::StorageImpl*, Produced> produced_;
  std::unordered_map<const c10::StorageImpl*, KeptMemory> kept_;
  std::uint64_t last_serial_ = 0;
  std::size_t purge_at_ = 256;
};

}  // namespace

std::unique_ptr<ThreadRecord> make_operator_record(std::shared_ptr<SavedModel> model) {
  return std::make_unique<OperatorRecord>(std::move(model));
}

}  // namespace tessera::recomputation
