#include "data_parallel/bucket_gradients.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <string>

namespace tessera::data_parallel {

std::vector<at::Tensor> gradients_in(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters) {
  const bool is_complex = !parameters.empty() && parameters[0].is_complex();
  const at::Tensor numbers = is_complex ? at::view_as_complex(buffer.view({-1, 2})) : buffer;
  std::vector<at::Tensor> gradients;
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor piece = numbers.narrow(0, begin, parameter.numel());
    gradients.push_back(parameter.is_non_overlapping_and_dense()
                            ? piece.as_strided(parameter.sizes(), parameter.strides(), piece.storage_offset())
                            : piece.view(parameter.sizes()));
    begin += parameter.numel();
  }
  if (begin != numbers.numel()) {
    throw InternalError("a bucket of gradients has " + std::to_string(numbers.numel()) + " numbers, its parameters " +
                        std::to_string(begin));
  }
  return gradients;
}

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

}  // namespace tessera::data_parallel
