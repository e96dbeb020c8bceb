#pragma once

#include <tessera/data_parallel/gradient_hook.h>

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// The hooks that come with Tessera; docs/guides/gradient_hooks.md says which to choose. With each of them all ranks
/// get the same bits, and an element that is not finite on one rank is not finite in the result.

/// "none": the exact average.
std::shared_ptr<GradientHook> all_reduce_hook();

/// "fp16": half the bytes of float. Gradients beyond ±65,504 are clamped to that range, infinities become NaN.
std::shared_ptr<GradientHook> fp16_hook();

/// "bf16": half the bytes of float, with its range and three digits fewer than fp16.
std::shared_ptr<GradientHook> bf16_hook();

struct Int8HookOptions {
  /// So many elements share a scale, their largest divided by 127. Smaller: more exact, and 4 bytes more for each
  /// block. A multiple of 8.
  TORCH_ARG(std::int64_t, block) = 256;
  /// Add what rounding lost to the gradient of the next step. Costs memory of the size of the gradients.
  TORCH_ARG(bool, error_feedback) = true;
};

/// "int8": a quarter of the bytes of float. Computes in double for double gradients, else in float. A block with an
/// element that is not finite becomes NaN as a whole. A bucket too small for blocks to pay travels exactly.
std::shared_ptr<GradientHook> int8_hook(const Int8HookOptions& options = {});

struct PowerSgdOptions {
  /// Of the approximation. A matrix of m by k elements travels as (m + k) * rank.
  TORCH_ARG(std::int64_t, rank) = 4;
  /// The first so many steps are exact: early gradients change too fast for the approximation to follow.
  TORCH_ARG(std::int64_t, start_step) = 10;
  /// Add what the approximation lost to the gradient of the next step. Costs memory of the size of the matrices.
  TORCH_ARG(bool, error_feedback) = true;
  /// A matrix that would not shrink by this factor travels exactly.
  TORCH_ARG(double, min_compression) = 2;
  /// Of the first approximation. The same on all ranks.
  TORCH_ARG(std::int64_t, seed) = 0;
};

/// "powersgd": matrices as products of two thin ones (Vogels, Karimireddy, Jaggi: PowerSGD, 2019), vectors exactly.
/// A parameter of more dimensions counts as the matrix [size(0), rest]. Computes in double for double gradients, else
/// in float. A matrix with an element that is not finite becomes NaN as a whole.
std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options = {});

/// The hook of that name with its default options: "none", "fp16", "bf16", "int8" or "powersgd". Throws ConfigError
/// for any other.
std::shared_ptr<GradientHook> make_gradient_hook(const std::string& compression);

}  // namespace tessera
