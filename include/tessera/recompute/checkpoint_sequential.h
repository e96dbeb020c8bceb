#pragma once

#include <tessera/recompute/checkpoint.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch::nn {
class Sequential;
}  // namespace torch::nn

namespace tessera {
namespace recompute {

/// Where each segment ends: `num_modules` in `num_segments` parts, the longer ones first. Throws ConfigError unless
/// there are as many modules as segments at least, and one segment.
std::vector<std::size_t> segment_ends(std::size_t num_modules, std::int64_t num_segments);

}  // namespace recompute

/// Calls the modules one after the other in `num_segments` segments of about equal length, each in a checkpoint() but
/// the last one, which backward needs at once. Modules are whatever takes and gives one tensor: holders, functions.
/// Requires: as for checkpoint().
template <typename Module>
at::Tensor checkpoint_sequential(const std::vector<Module>& modules, std::int64_t num_segments, at::Tensor input) {
  std::size_t begin = 0;
  for (const std::size_t end : recompute::segment_ends(modules.size(), num_segments)) {
    const std::vector<Module> part(modules.begin() + static_cast<std::ptrdiff_t>(begin),
                                   modules.begin() + static_cast<std::ptrdiff_t>(end));
    const auto run = [part](at::Tensor x) {
      for (Module module : part) x = module(x);  // NOLINT(performance-for-range-copy): holders call no const module
      return x;
    };
    input = end == modules.size() ? run(std::move(input)) : checkpoint(run, std::move(input));
    begin = end;
  }
  return input;
}

/// The same for the modules of a Sequential, each of which takes and gives one tensor.
at::Tensor checkpoint_sequential(const torch::nn::Sequential& modules, std::int64_t num_segments,
                                 const at::Tensor& input);

}  // namespace tessera
