#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A row of elements that tensors are views of, whose bytes come and go beneath them. While there are none, whoever
/// reads or writes the tensors gets an error with the text of `take()`; operators that only make views work.
///
/// Tensors that autograd has saved are views too, so they find the bytes of the moment. Writing them here changes no
/// version counter.
/// Thread-safety: none.
class HollowStorage {
 public:
  /// Starts without bytes.
  HollowStorage(std::int64_t num_elements, at::ScalarType dtype, c10::Device device, const std::string& why_empty);

  /// All of it, one-dimensional.
  const at::Tensor& row() const { return row_; }
  at::Tensor view(std::int64_t start, at::IntArrayRef shape) const;
  /// Whether the tensor is a view of it.
  bool holds(const at::Tensor& tensor) const;
  std::int64_t num_bytes() const { return num_bytes_; }
  bool has_bytes() const { return has_bytes_; }

  /// Requires: memory for num_bytes().
  void give(c10::DataPtr bytes);
  /// The bytes go back to who gave them, unless the caller keeps them.
  c10::DataPtr take(const std::string& why_empty);
  /// Requires: no bytes.
  void explain(const std::string& why_empty);

 private:
  c10::StorageImpl& impl() const;

  std::int64_t num_bytes_;
  bool has_bytes_ = false;
  at::Tensor row_;
};

}  // namespace tessera
