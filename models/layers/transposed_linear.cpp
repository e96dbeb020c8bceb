#include "layers/transposed_linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace tessera::models {

TransposedLinearImpl::TransposedLinearImpl(std::int64_t in_features, std::int64_t out_features)
    : weight(register_parameter("weight", at::zeros({in_features, out_features}))),
      bias(register_parameter("bias", at::zeros({out_features}))) {}

at::Tensor TransposedLinearImpl::forward(const at::Tensor& x) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = bias.size(0);
  return at::addmm(bias, x.reshape({-1, x.size(-1)}), weight).view(shape);
}

}  // namespace tessera::models
