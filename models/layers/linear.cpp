#include "layers/linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

namespace tessera::models {

LinearImpl::LinearImpl(std::int64_t in_features, std::int64_t out_features)
    : weight(register_parameter("weight", at::zeros({out_features, in_features}))),
      bias(register_parameter("bias", at::zeros({out_features}))) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

}  // namespace tessera::models
