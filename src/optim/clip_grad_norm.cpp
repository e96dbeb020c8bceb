#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

constexpr std::int64_t kBlock = 4096;

/// A sum along one tree: the first half and the second, and so on. ATen's own reductions cut by the number of threads.
at::Tensor tree_sum(at::Tensor values) {
  while (values.size(-1) > 1) {
    const auto half = values.size(-1) / 2;
    at::Tensor pairs = values.narrow(-1, 0, half) + values.narrow(-1, half, half);
    if (values.size(-1) % 2 == 1) pairs = at::cat({pairs, values.narrow(-1, 2 * half, 1)}, -1);
    values = std::move(pairs);
  }
  return values.squeeze(-1);
}

double sum_of_squares(const at::Tensor& gradient) {
  const at::Tensor squares = gradient.reshape({-1}).to(at::kDouble).square();
  const auto whole = squares.numel() / kBlock;
  std::vector<at::Tensor> blocks;
  if (whole > 0) blocks.push_back(tree_sum(squares.narrow(0, 0, whole * kBlock).view({whole, kBlock})));
  const auto rest = squares.numel() - whole * kBlock;
  if (rest > 0) blocks.push_back(tree_sum(squares.narrow(0, whole * kBlock, rest)).view({1}));
  return blocks.empty() ? 0 : tree_sum(at::cat(blocks)).item<double>();
}

}  // namespace

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
  const at::NoGradGuard no_grad;
  // A model that ties weights lists one parameter twice.
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    gradients.push_back(parameter.grad());
  }
  double sum = 0;
  for (const at::Tensor& gradient : gradients) sum += sum_of_squares(gradient);
  const double norm = std::sqrt(sum);
  if (norm <= max_norm || !std::isfinite(norm)) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(max_norm / norm);
  return norm;
}

}  // namespace tessera
