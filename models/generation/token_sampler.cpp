#include "generation/token_sampler.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

namespace tessera::models {
namespace {

GenerateOptions checked(GenerateOptions options) {
  options.check();
  return options;
}

/// Keeps the likeliest tokens up to the one with which their sum reaches `top_p`; the likeliest stays in any case.
at::Tensor nucleus(const at::Tensor& probabilities, double top_p) {
  const auto [sorted, places] = probabilities.sort(-1, /*descending=*/true);
  const at::Tensor before = at::cumsum(sorted, -1) - sorted;
  const at::Tensor kept = sorted.masked_fill(before >= top_p, 0);
  const at::Tensor result = at::zeros_like(probabilities).scatter(-1, places, kept);
  return result / result.sum(-1, /*keepdim=*/true);
}

}  // namespace

at::Tensor token_probabilities(const at::Tensor& logits, const GenerateOptions& options) {
  at::Tensor scaled = logits.detach().to(at::kCPU, at::kFloat) / options.temperature();
  if (options.top_k() > 0) {
    const std::int64_t count = std::min(options.top_k(), scaled.size(-1));
    const auto [values, places] = at::topk(scaled, count);
    // By index, not by the smallest value that is kept: with equal values more than `top_k` could remain.
    scaled = at::zeros_like(scaled).fill_(-std::numeric_limits<float>::infinity()).scatter(-1, places, values);
  }
  const at::Tensor probabilities = at::softmax(scaled, -1);
  return options.top_p() < 1 ? nucleus(probabilities, options.top_p()) : probabilities;
}

TokenSampler::TokenSampler(const GenerateOptions& options)
    : options_(checked(options)),
      generator_(at::detail::createCPUGenerator(static_cast<std::uint64_t>(options.seed()))) {}

at::Tensor TokenSampler::draw(const at::Tensor& logits) {
  const at::NoGradGuard no_grad;
  if (options_.temperature() == 0) return at::argmax(logits, -1, /*keepdim=*/true);
  return at::multinomial(token_probabilities(logits, options_), 1, /*replacement=*/false, generator_)
      .to(logits.device());
}

}  // namespace tessera::models
