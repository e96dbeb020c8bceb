#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/flight/call_record.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/work_state.h"

namespace tessera::comm {

/// The checked mode: compares a call with those that the other members of the group are about to make.
/// Collective: over the group, before the call itself. Throws ConfigError that names the odd one out.
void require_agreement(Group& group, const CallRecord& call);

/// One call of a Communicator on its way to a backend: records it, starts it, and adds its description to errors.
class Call {
 public:
  /// `peer`: of a message, a rank of the group that need not exist.
  Call(std::shared_ptr<Group> group, const char* operation, const at::Tensor& about, std::chrono::milliseconds timeout,
       const std::source_location& where, int peer = -1);

  /// Keeps `tensor` alive until the operation is done.
  Call& keep(at::Tensor tensor);
  /// Note [Who keeps the memory of calls on devices]
  /// The work of a call lives until the device is done, so that somebody may ask it, and keeps the tensors that the
  /// backend was given. The host runs ahead of the device: their memory would be free late, at a time that nobody can
  /// tell, and freed by a thread that is not the program's. So on devices a backend is given the bytes without owning
  /// them, and the call keeps the memory until the program waits for it, from when on the order of streams protects it,
  /// or, of a call that nobody waits for, until the device is done.
  ///
  /// Keeps `tensor` alive until the operation is done, and returns what the backend is given.
  at::Tensor lend(const at::Tensor& tensor);
  std::vector<at::Tensor> lend(std::vector<at::Tensor> tensors);
  Call& result(at::Tensor tensor);
  /// Runs after the operation, before `wait()` returns.
  Call& then(std::function<void()> finish);

  /// `begin` returns what it started: a c10d work or a transfer. Its exceptions are rethrown with a description of the
  /// call.
  template <typename Begin>
  Work start(Begin begin) {
    try {
      prepare();
      assign(begin());
      note_begun();
    } catch (...) {
      state_->rethrow();
    }
    return Work(state_);
  }

  /// Throws ConfigError with the call's description.
  [[noreturn]] void refuse(const std::string& reason);
  /// `reason` is a literal, because a std::string would be built in every call, also where `condition` holds.
  void require(bool condition, const char* reason) {
    if (!condition) refuse(reason);
  }

 private:
  /// Throws when the job has lost a rank and, in the checked mode, when the other members make another call.
  void prepare() const;
  void assign(c10::intrusive_ptr<c10d::Work> work) {
    state_->work = std::move(work);
    if (about_.defined() && !about_.device().is_cpu()) {
      follow_on_device();
    } else {
      note_when_done();
    }
  }
  void assign(std::unique_ptr<Transfer> transfer) { state_->transfer = std::move(transfer); }
  /// For a trace: records when the operation is done, which may be before the caller waits for it.
  void note_when_done();
  /// The host will not know when the call is done: somebody asks the device.
  void follow_on_device();
  /// For a trace: records how long the start of the operation blocked this thread.
  void note_begun();

  std::shared_ptr<Work::State> state_;
  std::int64_t began_ns_ = 0;  // 0 without a trace
  bool is_collective_ = true;
  at::Tensor about_;
};

/// `sizes`, or equal pieces of `total` when `sizes` is empty. Refuses sizes that do not add up to `total`.
Communicator::Sizes checked_sizes(Call& call, const Communicator::Sizes& sizes, int num_ranks, std::int64_t total);
c10d::ReduceOp to_c10d(ReduceOp op);

/// `tensor` with `dim` moved to the front, contiguous. Refuses a `dim` that the tensor does not have.
inline at::Tensor dim_first(Call& call, const at::Tensor& tensor, std::int64_t& dim) {
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    call.refuse("a tensor of " + std::to_string(tensor.dim()) + " dimensions has no dim " + std::to_string(dim));
  }
  if (dim < 0) dim += tensor.dim();
  return (dim == 0 ? tensor : tensor.movedim(dim, 0)).contiguous();
}

/// For what a call makes. Nothing arrives in a fake world: zeros then, not memory that nobody has written.
inline at::Tensor memory_for_result(Group& group, at::IntArrayRef shape, const at::TensorOptions& options) {
  return group.world().connector->moves_data() ? at::empty(shape, options) : at::zeros(shape, options);
}

inline at::Tensor with_rows(Group& group, const at::Tensor& like, std::int64_t rows) {
  auto shape = like.sizes().vec();
  shape[0] = rows;
  return memory_for_result(group, shape, like.options());
}

/// Makes `rows` the result of the call, with its first dimension moved back to `dim`.
inline void give_back(Call& call, const at::Tensor& rows, std::int64_t dim) {
  if (dim == 0) {
    call.result(rows);
    return;
  }
  auto shape = rows.sizes().vec();
  std::rotate(shape.begin(), shape.begin() + 1, shape.begin() + dim + 1);
  at::Tensor result = at::empty(shape, rows.options());
  call.result(result).then([rows, dim, result] { result.copy_(rows.movedim(0, dim)); });
}

inline std::int64_t elements_per_row(const at::Tensor& rows) { return c10::multiply_integers(rows.sizes().slice(1)); }

inline bool all_same(const Communicator::Sizes& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](std::int64_t size) { return size == sizes.front(); });
}

inline std::vector<at::Tensor> cut(const at::Tensor& tensor, const Communicator::Sizes& sizes) {
  return tensor.split_with_sizes(sizes);
}

inline void check_op(Call& call, const at::Tensor& tensor, ReduceOp op) {
  if (op != ReduceOp::kAvg || tensor.is_floating_point()) return;
  call.refuse(std::string("an average of ") + c10::toString(tensor.scalar_type()) +
              " would have to be rounded; sum and divide it yourself, or convert it to a floating-point type");
}

inline void check_rank(Call& call, int rank, int size, const char* what) {
  if (rank >= 0 && rank < size) return;
  call.refuse(std::string(what) + " " + std::to_string(rank) + " is not a rank of this group; it has 0 to " +
              std::to_string(size - 1));
}

/// A contiguous stand-in for `tensor` that is copied back afterwards, or `tensor` itself.
inline at::Tensor in_place(Call& call, const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor flat = tensor.contiguous();
  call.then([tensor, flat] {
    const at::NoGradGuard guard;
    tensor.copy_(flat);
  });
  return flat;
}

template <typename Options>
Options options_for(std::chrono::milliseconds timeout, bool async) {
  Options options;
  options.timeout = timeout;
  options.asyncOp = async;
  return options;
}

}  // namespace tessera::comm
