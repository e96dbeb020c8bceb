#pragma once

#include <tessera/intercept/saved_tensors.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "recompute/memory/tally.h"
#include "recompute/run_state.h"
#include "recompute/segment.h"

namespace tessera::recomputation {

class Region;

/// A tensor that a region computes again when it is asked for. Keeps the region.
class Recomputed {
 public:
  Recomputed(std::shared_ptr<Region> region, std::size_t number) : region_(std::move(region)), number_(number) {}
  ~Recomputed();
  Recomputed(const Recomputed&) = delete;
  Recomputed& operator=(const Recomputed&) = delete;

  at::Tensor tensor() const;

 private:
  std::shared_ptr<Region> region_;
  std::size_t number_;
};

/// How a tensor lies in the memory of another one.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()), strides(tensor.strides().vec()), offset(tensor.storage_offset()) {}
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
};

/// A value of a region: a tensor that its operators take or give.
using Value = std::size_t;

/// One operator that forward has run.
struct RecordedOperator {
  struct Taken {
    Value value;
    bool requires_grad;
  };

  c10::OperatorHandle handle;
  torch::jit::Stack arguments;  ///< with a placeholder for each of `taken`
  std::vector<Taken> taken;     ///< in the order of OperatorCall::for_each_tensor()
  std::vector<Value> given;     ///< in the order of OperatorCall::for_each_result()
  std::vector<SavedTensor> saved;
  std::shared_ptr<const AutocastState> autocast;
  std::optional<RandomState> random;  ///< before it drew; none: it did not
  std::uint64_t random_digest_after = 0;
};

/// Operators that forward has run, some of whose tensors were not kept, and what it takes to run them again.
///
/// Note [Replaying operators]
/// Forward ran as ever: its graph, its results and its random numbers are those of a plain run. Only what its nodes
/// saved was replaced, here by numbers. When backward asks for a number, the operators run again, in the same order,
/// with the same arguments, the state of the generators and of autocast that each had, and with gradients enabled, so
/// that they save the same tensors; their graph is dropped, as in Note [Recomputing without a backward in the
/// backward]. What entered from outside is kept.
///
/// Operators are replayed, not the program: conditions, numbers that were read with item() and random choices are as
/// they were. What the program did beside operators is not done again, so nothing is recorded that depends on it: see
/// Note [What can be replayed].
///
/// Thread-safety: made and filled by the thread of the forward; asked by any thread.
class Region {
 public:
  Region(std::string name, std::shared_ptr<Tally> tally) : name_(std::move(name)), tally_(std::move(tally)) {}

  /// `is_of_model`: it is there anyway.
  Value add_outside(const at::Tensor& tensor, bool is_of_model);
  Value add_computed(std::shared_ptr<Recomputed> from);
  /// Any numbers will do.
  Value add_stand_in(const at::Tensor& like);
  Value add_inside();
  std::size_t add(RecordedOperator op);
  /// Number of a tensor that the last operator has saved, the `saved`th.
  std::size_t want_saved(std::size_t saved);
  /// Number of a tensor that lies in the memory of what the last operator has given.
  std::size_t want_given(std::size_t given, Geometry geometry);
  bool is_empty() const { return operators_.empty(); }

  /// Whether a tensor from outside lies there.
  bool has_from_outside(const c10::StorageImpl* memory) const;
  /// The memory is about to be written to: keeps a copy of what it has been so far.
  void keep_copy_of(const c10::StorageImpl* memory);
  /// From now on it cannot be replayed. `why` is thrown when backward asks.
  void spoil(std::string why);
  /// Whether backward has asked for a tensor, or nobody can ask any more: it gets no further operators.
  bool is_over() const;

  at::Tensor tensor(std::size_t number);
  /// Nobody will ask for it any more.
  void forget(std::size_t number) noexcept;

 private:
  struct ValueSource {
    Kept outside{};
    std::shared_ptr<Recomputed> computed = nullptr;
    std::optional<at::TensorOptions> options = std::nullopt;  // of a stand-in
    std::optional<Geometry> geometry = std::nullopt;          // of a stand-in
    bool is_inside = false;
    bool is_leaf = false;  // a parameter, used as it is
  };
  struct Wanted {
    std::size_t op;
    std::size_t index;                 // among what it has saved, or given
    std::optional<Geometry> geometry;  // given
    bool is_wanted = true;
  };
  using Numbers = std::vector<std::vector<std::size_t>>;

  std::shared_ptr<Replayed> replayed_of_this_pass();
  void replay(Replayed& replayed);
  void run(const RecordedOperator& op, const std::vector<std::size_t>& numbers, std::vector<at::Tensor>& values,
           Replayed& replayed) const;
  at::Tensor value(const RecordedOperator::Taken& taken, std::vector<at::Tensor>& values) const;
  at::Tensor load(const ValueSource& source) const;
  Numbers numbers_by_operator(std::size_t& end) const;
  std::vector<std::size_t> last_uses() const;

  mutable std::recursive_mutex mutex_;
  std::string name_;
  std::shared_ptr<Tally> tally_;
  std::vector<ValueSource> sources_;
  std::vector<RecordedOperator> operators_;
  std::vector<Wanted> wanted_;
  std::size_t num_wanted_ = 0;
  bool was_asked_ = false;
  std::string spoilt_;
  std::weak_ptr<Replayed> replayed_;
};

}  // namespace tessera::recomputation
