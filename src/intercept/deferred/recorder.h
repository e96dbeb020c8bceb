#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::intercept {

/// The place and shape of a tensor in a storage. A history holds these instead of tensors of its own storage: with
/// tensors, neither would ever be freed.
struct Place {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;

  static Place of(const at::Tensor& tensor);
  at::Tensor on(const c10::Storage& storage) const;
};

struct History;

/// An operator that wrote values to a storage, and all that is needed to run it again.
struct Call {
  Call(const c10::OperatorHandle& called, torch::jit::Stack with) : op(called), inputs(std::move(with)) {}

  c10::OperatorHandle op;
  torch::jit::Stack inputs;  ///< without those in `own` and `past`
  /// The inputs on the storage itself, by their position.
  std::vector<std::pair<std::size_t, Place>> own;
  /// If the storage is no input: the result number `result` is copied to this place.
  std::optional<Place> result_place;
  std::size_t result = 0;
  /// Random operators: the generator as it was before, and its position among the inputs.
  std::optional<at::Generator> generator;
  std::size_t generator_position = 0;
  /// Writes all of the storage and reads none of it.
  bool overwrites = false;
  /// Inputs that are deferred themselves: the calls that computed the values that they had at that time.
  struct Past {
    std::size_t position;
    std::optional<std::size_t> element;  ///< where the input is a list
    Place place;
    std::shared_ptr<const History> history;
    std::size_t num_calls;
    std::size_t num_bytes;
  };
  std::vector<Past> past;
  /// Large inputs that are not deferred: they must not change.
  struct Held {
    at::Tensor tensor;
    std::uint32_t version;
  };
  std::vector<Held> held;
};

/// The calls that compute the values of a storage without bytes. It only grows, since other histories may depend on its
/// first calls.
struct History {
  std::vector<Call> calls;
};

/// Null for a storage with bytes.
std::shared_ptr<History> history_of(const c10::Storage& storage);
/// The storage loses its bytes.
void defer(const c10::Storage& storage);
/// Computes the values after the first `num_calls` calls of a history. Requires: the storage has bytes.
void run_again(const c10::Storage& storage, const std::vector<Call>& calls, std::size_t num_calls);

/// Gives bytes to a deferred storage as long as the object lives.
class LentBytes {
 public:
  LentBytes(const c10::Storage& storage, c10::DataPtr bytes);
  ~LentBytes();
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;

  /// Computes the values.
  void fill() const;
  /// The storage keeps the bytes, and forgets its history.
  void keep() { keeps_ = true; }

 private:
  c10::Storage storage_;
  c10::DataPtr history_;
  bool keeps_ = false;
};

/// Fresh memory for the storage.
c10::DataPtr bytes_for(const c10::Storage& storage);

/// The kernel of every operator that is called under a DeferredInit.
///
/// Note [Values that are computed later]
/// Operators on tensors without bytes come in five kinds. Those composed of other operators run as they are, and these
/// others are dispatched here. Operators that change only a shape run as they are; so do views, which need no bytes.
/// Writes are recorded with the storage that they write to; random ones are also run, in memory that is dropped, so
/// that the generator advances. All other operators run, on inputs whose values are computed for the call; if a result
/// is large, its bytes are dropped and the operator is recorded. Records belong to the storage (`History`) and are
/// freed with it; there is no global table.
void call_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace tessera::intercept
