#include <tessera/core/error.h>
#include <tessera/recompute/recompute_sequential.h>

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>

namespace tessera {

std::vector<std::size_t> recomputation::segment_ends(std::size_t num_modules, std::int64_t num_segments) {
  if (num_segments < 1 || static_cast<std::size_t>(num_segments) > num_modules) {
    throw ConfigError("recompute_sequential: expected 1 to " + std::to_string(num_modules) +
                      " segments, as there are " + std::to_string(num_modules) + " modules, found " +
                      std::to_string(num_segments));
  }
  const auto count = static_cast<std::size_t>(num_segments);
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    end += num_modules / count + (i < num_modules % count ? 1 : 0);
    ends.push_back(end);
  }
  return ends;
}

at::Tensor recompute_sequential(const torch::nn::Sequential& modules, std::int64_t num_segments,
                                const at::Tensor& input) {
  std::vector<std::function<at::Tensor(const at::Tensor&)>> calls;
  for (const torch::nn::AnyModule& module : *modules) {
    // A copy of the handle: forward() is not const.
    calls.emplace_back([handle = module](const at::Tensor& x) mutable { return handle.forward(x); });
  }
  return recompute_sequential(calls, num_segments, input);
}

}  // namespace tessera
