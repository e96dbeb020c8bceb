#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::intercept {

/// The shape of a tensor on a storage. A history must not hold tensors of its own storage: neither would ever be freed.
struct Place {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;

  static Place of(const at::Tensor& tensor);
  at::Tensor on(const c10::Storage& storage) const;
};

struct History;

/// An operator that gave a storage values, and all that it takes to run it again.
struct Call {
  Call(const c10::OperatorHandle& called, torch::jit::Stack with) : op(called), inputs(std::move(with)) {}

  c10::OperatorHandle op;
  torch::jit::Stack inputs;  ///< without those that follow
  /// The inputs on the storage itself, by their position.
  std::vector<std::pair<std::size_t, Place>> own;
  /// Where it is no input: the result with this number is copied here.
  std::optional<Place> result_place;
  std::size_t result = 0;
  /// Random operators: the generator as it was before, and its position among the inputs.
  std::optional<at::Generator> generator;
  std::size_t generator_position = 0;
  /// Writes all of the storage and reads none of it.
  bool overwrites = false;
  /// Inputs that are deferred themselves: how the values came about that they had then.
  struct Past {
    std::size_t position;
    std::optional<std::size_t> element;  ///< where the input is a list
    Place place;
    std::shared_ptr<const History> history;
    std::size_t num_calls;
    std::size_t num_bytes;
  };
  std::vector<Past> past;
  /// Large inputs that are not: they must not have changed.
  struct Held {
    at::Tensor tensor;
    std::uint32_t version;
  };
  std::vector<Held> held;
};

/// How the values of a storage without bytes come about. Others may depend on its first calls: it only grows.
struct History {
  std::vector<Call> calls;
};

/// Null for a storage with bytes.
std::shared_ptr<History> history_of(const c10::Storage& storage);
/// The storage loses its bytes.
void defer(const c10::Storage& storage);
/// The values after the first calls of a history. Requires: bytes.
void run_again(const c10::Storage& storage, const std::vector<Call>& calls, std::size_t num_calls);

/// Bytes for a deferred storage as long as the object lives.
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

}  // namespace tessera::intercept
