#pragma once

#include <tessera/recompute/first_run.h>
#include <tessera/recompute/tensors_in.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// Calls `function(inputs...)` and returns what it returns, but keeps nothing that backward will need, except the
/// inputs: when backward comes to it, the function runs again. The gradients are those of a plain call. See
/// docs/guides/recompute.md.
///
/// Inputs may be tensors, also undefined ones and such that require no gradient, vectors, arrays, optionals, pairs and
/// tuples of tensors, and anything that can be copied. What the function captures gets its gradients too.
///
/// The second run has the random numbers of LibTorch's default generators and the autocast settings of the first. It
/// ends as soon as it has computed all that is needed. Calls nest.
///
/// Requires: the function computes the same each time. It is copied, so what it captures by reference must live until
/// backward: capture by value. It does not change its inputs, or the weights until backward, in place.
/// Throws ConfigError out of backward when the second run was not like the first; what the function itself throws there
/// comes out of backward.
/// Thread-safety: threads may checkpoint at the same time, but ones that draw random numbers share LibTorch's one CPU
/// generator; the mix-up is noticed and refused.
template <typename Function, typename... Inputs>
auto checkpoint(Function function, Inputs... inputs) {  // NOLINT(performance-unnecessary-value-param)
  static_assert(!std::is_void_v<std::invoke_result_t<Function&, Inputs&...>>,
                "checkpoint: a function that returns nothing has no gradients");
  if (!recompute::is_wanted()) return std::invoke(function, inputs...);

  using Arguments = std::tuple<Inputs...>;
  Arguments others(inputs...);  // the tensors are taken out of it, to be kept as autograd keeps tensors
  std::vector<at::Tensor> tensors;
  recompute::TensorsIn<Arguments>::visit(others, [&](at::Tensor& tensor) { tensors.push_back(std::move(tensor)); });
  auto run_again = [function, others](const std::vector<at::Tensor>& again) {
    Function fresh = function;  // as it was before the first run, though calls may change it
    Arguments arguments = others;
    auto next = again.begin();
    recompute::TensorsIn<Arguments>::visit(arguments, [&](at::Tensor& tensor) { tensor = *next++; });
    std::apply(fresh, arguments);
  };

  recompute::FirstRun run(std::move(tensors), std::move(run_again));
  auto result = std::invoke(function, inputs...);
  run.complete();
  return result;
}

}  // namespace tessera
