#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tessera::testing::sim {

/// The bytes that a tensor means, exactly: runs of bytes at regular distances. Dimensions are ordered from the farthest
/// distance, and joined where there is no gap.
class Span {
 public:
  explicit Span(const at::Tensor& tensor);
  Span(const void* begin, std::size_t num_bytes);

  bool is_empty() const { return run_ == 0; }
  const char* begin() const { return begin_; }
  const char* end() const;  ///< behind the last byte
  bool is_dense() const { return dims_.empty(); }
  bool touches(const Span& other) const;
  /// Whether this is one run that has all of `other`.
  bool covers(const Span& other) const;
  bool operator==(const Span& other) const = default;

 private:
  struct Dim {
    std::size_t size;
    std::size_t distance;  // in bytes
    bool operator==(const Dim& other) const = default;
  };
  using Runs = std::vector<const char*>;
  /// The runs that reach between two addresses, ordered.
  Runs runs_between(const char* from, const char* to) const;

  const char* begin_ = nullptr;
  std::vector<Dim> dims_;
  std::size_t run_ = 0;  // bytes of each run
};

}  // namespace tessera::testing::sim
