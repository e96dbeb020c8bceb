#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::recompute {

/// What is remembered of a tensor that autograd saved and that was dropped: enough to tell whether the second run saves
/// the same one.
struct SavedTensor {
  explicit SavedTensor(const at::Tensor& tensor);

  /// "float [2, 3] on cpu".
  std::string text() const;
  /// Throws ConfigError, unless `again` has the same size, type and device and, if it depends on weights, was changed
  /// in place as often.
  void require_same(const SavedTensor& again, std::size_t number) const;

  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  std::int64_t version;   ///< autograd's count of changes in place
  bool is_wanted = true;  ///< the node that saved it may still ask for it
};

}  // namespace tessera::recompute
