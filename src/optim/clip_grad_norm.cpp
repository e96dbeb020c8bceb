#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/exact_sum.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

namespace tessera {

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
  const at::NoGradGuard no_grad;
  // A model that ties weights lists one parameter twice.
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (const Slice slice = global_slice(parameter); !slice.is_whole()) {
      throw ConfigError("a norm of all gradients needs all of them, and a parameter here is " + slice.text() +
                        ": the other parts are on other ranks");
    }
    gradients.push_back(parameter.grad());
  }
  ExactSum squares;
  for (const at::Tensor& gradient : gradients) squares.add_squares(gradient);
  const double norm = std::sqrt(squares.value());
  if (norm <= max_norm || !std::isfinite(norm)) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(max_norm / norm);
  return norm;
}

}  // namespace tessera
