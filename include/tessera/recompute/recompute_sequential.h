#pragma once

#include <tessera/recompute/recompute.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch::nn {
class Sequential;
}  // namespace torch::nn

namespace tessera {
namespace recomputation {

/// Where each segment ends when `num_modules` are cut into `num_segments` parts, the longer ones first. Throws
/// ConfigError unless there are at least one segment and at least as many modules as segments.
std::vector<std::size_t> segment_ends(std::size_t num_modules, std::int64_t num_segments);

}  // namespace recomputation

/// Calls the modules one after the other in `num_segments` segments of about equal length. Each segment runs in a
/// recompute(), except the last one, which backward needs at once. A module is anything that takes one tensor and
/// returns one: a holder, a function.
/// Requires: as for recompute().
template <typename Module>
at::Tensor recompute_sequential(const std::vector<Module>& modules, std::int64_t num_segments, at::Tensor input) {
  std::size_t begin = 0;
  for (const std::size_t end : recomputation::segment_ends(modules.size(), num_segments)) {
    const std::vector<Module> part(modules.begin() + static_cast<std::ptrdiff_t>(begin),
                                   modules.begin() + static_cast<std::ptrdiff_t>(end));
    const auto run = [part](at::Tensor x) {
      for (Module module : part) x = module(x);  // NOLINT(performance-for-range-copy): holders call no const module
      return x;
    };
    input = end == modules.size() ? run(std::move(input)) : recompute(run, std::move(input));
    begin = end;
  }
  return input;
}

/// The same for the modules of a Sequential, each of which takes one tensor and returns one.
at::Tensor recompute_sequential(const torch::nn::Sequential& modules, std::int64_t num_segments,
                                const at::Tensor& input);

/// The former name of recompute_sequential(), deprecated like checkpoint().
template <typename Modules>
[[deprecated("call tessera::recompute_sequential()")]] at::Tensor checkpoint_sequential(const Modules& modules,
                                                                                        std::int64_t num_segments,
                                                                                        const at::Tensor& input) {
  return recompute_sequential(modules, num_segments, input);
}

}  // namespace tessera
