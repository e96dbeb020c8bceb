#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A flat buffer that tensors are views of. Its bytes can be given and taken while the tensors live. Without bytes,
/// reading or writing the tensors throws an error with the text of `take()`; operators that only make views work.
///
/// Tensors that autograd has saved are views too, so they see the present bytes. Giving bytes changes no version
/// counter.
/// Thread-safety: none.
class HollowStorage {
 public:
  /// Starts without bytes.
  HollowStorage(std::int64_t num_elements, at::ScalarType dtype, c10::Device device, const std::string& why_empty);

  /// All of it, one-dimensional.
  const at::Tensor& flat() const { return flat_; }
  at::Tensor view(std::int64_t start, at::IntArrayRef shape) const;
  /// Whether the tensor is a view of it.
  bool holds(const at::Tensor& tensor) const;
  std::int64_t num_bytes() const { return num_bytes_; }
  bool has_bytes() const { return has_bytes_; }

  /// Requires: memory for num_bytes().
  void give(c10::DataPtr bytes);
  /// Removes the bytes and returns them. They are freed if the caller drops them.
  c10::DataPtr take(const std::string& why_empty);
  /// Sets the text of the error that a read or write throws. Requires: no bytes.
  void explain(const std::string& why_empty);

 private:
  c10::StorageImpl& impl() const;

  std::int64_t num_bytes_;
  bool has_bytes_ = false;
  at::Tensor flat_;
};

}  // namespace tessera
