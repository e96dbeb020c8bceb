#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::recomputation {

/// Calls a function once more, with these tensors as its inputs. Its result is dropped.
using RunAgain = std::function<void(const std::vector<at::Tensor>&)>;

/// False where autograd saves nothing anyway, as under NoGradGuard.
bool is_wanted();

/// The core of recompute(). While one lives, tensors that autograd saves on this thread are dropped; `run_again`
/// computes them again when backward asks for them.
/// Thread-safety: made and ended by one thread.
class FirstRun {
 public:
  FirstRun(std::vector<at::Tensor> inputs, RunAgain run_again);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

  /// The function has returned. Throws ConfigError if it changed an input in place.
  void complete();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Finds the tensors in a value: `TensorsIn<T>::visit(value, visitor)` calls `visitor(at::Tensor&)` for each, always in
/// the same order. A type without a specialisation is taken to hold none.
template <typename T>
struct TensorsIn {
  template <typename Visitor>
  static void visit(T& /*value*/, const Visitor& /*visitor*/) {}
};

template <>
struct TensorsIn<at::Tensor> {
  template <typename Visitor>
  static void visit(at::Tensor& value, const Visitor& visitor) {
    visitor(value);
  }
};

template <typename T>
struct TensorsIn<std::optional<T>> {
  template <typename Visitor>
  static void visit(std::optional<T>& value, const Visitor& visitor) {
    if (value) TensorsIn<T>::visit(*value, visitor);
  }
};

template <typename T, typename Allocator>
struct TensorsIn<std::vector<T, Allocator>> {
  template <typename Visitor>
  static void visit(std::vector<T, Allocator>& values, const Visitor& visitor) {
    if constexpr (!std::is_same_v<T, bool>) {
      for (T& value : values) TensorsIn<T>::visit(value, visitor);
    }
  }
};

template <typename T, std::size_t size>
struct TensorsIn<std::array<T, size>> {
  template <typename Visitor>
  static void visit(std::array<T, size>& values, const Visitor& visitor) {
    for (T& value : values) TensorsIn<T>::visit(value, visitor);
  }
};

template <typename First, typename Second>
struct TensorsIn<std::pair<First, Second>> {
  template <typename Visitor>
  static void visit(std::pair<First, Second>& value, const Visitor& visitor) {
    TensorsIn<First>::visit(value.first, visitor);
    TensorsIn<Second>::visit(value.second, visitor);
  }
};

template <typename... T>
struct TensorsIn<std::tuple<T...>> {
  template <typename Visitor>
  static void visit(std::tuple<T...>& value, const Visitor& visitor) {
    std::apply([&visitor](T&... element) { (TensorsIn<T>::visit(element, visitor), ...); }, value);
  }
};

}  // namespace tessera::recomputation

namespace tessera {

/// Calls `function(inputs...)` and returns its result, but of the tensors that backward will need it keeps only the
/// inputs. When backward reaches the function's nodes, the function runs again. The gradients are those of a plain
/// call. See docs/guides/recompute.md.
///
/// Inputs may be tensors, including undefined ones and those that require no gradient; vectors, arrays, optionals,
/// pairs and tuples of tensors; and anything that can be copied. Tensors that the function captures get gradients too.
///
/// The second run uses the random numbers of LibTorch's default generators and the autocast settings of the first run.
/// It ends as soon as it has computed all that is needed. Calls nest.
///
/// Requires: the function computes the same each time. It is copied, so objects that it captures by reference must live
/// until backward: capture by value. It does not change its inputs in place. Nothing changes the weights in place
/// before backward.
/// backward() throws ConfigError when the second run differs from the first, and rethrows exceptions that the function
/// throws in its second run.
/// Thread-safety: threads may call it at the same time. Functions that draw random numbers share LibTorch's one CPU
/// generator, though; if threads use it at the same time, backward() notices that and throws.
template <typename Function, typename... Inputs>
auto recompute(Function function, Inputs... inputs) {  // NOLINT(performance-unnecessary-value-param)
  static_assert(!std::is_void_v<std::invoke_result_t<Function&, Inputs&...>>,
                "recompute: a function that returns nothing has no gradients");
  if (!recomputation::is_wanted()) return std::invoke(function, inputs...);

  using Arguments = std::tuple<Inputs...>;
  Arguments others(inputs...);  // the tensors are taken out of it, to be kept as autograd keeps tensors
  std::vector<at::Tensor> tensors;
  recomputation::TensorsIn<Arguments>::visit(others, [&](at::Tensor& tensor) { tensors.push_back(std::move(tensor)); });
  auto run_again = [function, others](const std::vector<at::Tensor>& again) {
    Function fresh = function;  // as it was before the first run, though calls may change it
    Arguments arguments = others;
    auto next = again.begin();
    recomputation::TensorsIn<Arguments>::visit(arguments, [&](at::Tensor& tensor) { tensor = *next++; });
    std::apply(fresh, arguments);
  };

  recomputation::FirstRun run(std::move(tensors), std::move(run_again));
  auto result = std::invoke(function, inputs...);
  run.complete();
  return result;
}

/// The former name of recompute(). Removed in the next version, since a checkpoint is also a set of files of a run.
template <typename Function, typename... Inputs>
[[deprecated("call tessera::recompute()")]] auto checkpoint(Function function, Inputs... inputs) {
  return recompute(std::move(function), std::move(inputs)...);
}

}  // namespace tessera
