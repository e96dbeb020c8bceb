#pragma once

#include <ATen/ATen.h>

#include <string>

#include "support/require.h"

namespace tessera::testing {

/// Where two tensors of one shape differ: how many elements, and the first of them.
inline std::string difference_of(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor differs = found.detach().cpu().ne(expected.detach().cpu()).flatten();
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return "the tensors differ in something else than their elements";
  const auto first = differs.to(at::kByte).argmax().item<std::int64_t>();
  const auto at_first = [&](const at::Tensor& tensor) { return text_of(tensor.detach().flatten()[first].item()); };
  return std::to_string(count) + " of " + std::to_string(differs.numel()) + " elements differ; element " +
         std::to_string(first) + ": found " + at_first(found) + ", expected " + at_first(expected);
}

/// As `require_equal` of values: element by element, with the same shape and dtype.
inline void require_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  if (found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type()) {
    require_equal(found.toString() + text_of(found.sizes()), expected.toString() + text_of(expected.sizes()), what);
  }
  if (!at::equal(found, expected)) throw std::runtime_error(what + ": " + difference_of(found, expected));
}

}  // namespace tessera::testing
