#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::recompute {

/// Finds the tensors in a value: `TensorsIn<T>::visit(value, visitor)` calls `visitor(at::Tensor&)` for each, always in
/// the same order. Types that it does not know hold none.
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

}  // namespace tessera::recompute
