#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace torch::data {
template <typename Data, typename Target>
struct Example;
}  // namespace torch::data

namespace tessera::train {

/// Moves a tensor of the CPU into pinned memory. One with gaps becomes contiguous: devices copy such through memory of
/// their own that is not pinned, and wait. Throws c10::Error for tensors that are elsewhere.
void pin_tensor(at::Tensor& tensor);

/// A type of the program's: `T pin_memory() const` returns it with its tensors in pinned memory, as Python's DataLoader
/// has it.
template <class T>
concept PinsItself = requires(const T& batch) {
  { batch.pin_memory() } -> std::convertible_to<T>;
};

/// Has no tensors.
template <class T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<std::remove_cv_t<T>, std::string>;

template <class T>
concept HasElements = requires(T& batch) {
  typename T::value_type;
  batch.begin();
  batch.end();
};

/// std::pair, std::tuple.
template <class T>
concept HasParts = !HasElements<T> && requires { std::tuple_size<T>::value; };

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
inline constexpr bool kIsExample = false;
template <class Data, class Target>
inline constexpr bool kIsExample<torch::data::Example<Data, Target>> = true;

/// Whether `pin()` knows where the tensors of a batch are: in a tensor, an `Example` of torch::data, a type with
/// `pin_memory()`, and in pairs, tuples, optionals and containers of these.
template <class T>
consteval bool can_pin() {
  if constexpr (PlainValue<T> || std::same_as<T, at::Tensor>) {
    return true;
  } else if constexpr (PinsItself<T>) {
    return std::is_move_assignable_v<T>;
  } else if constexpr (kIsExample<T>) {
    if constexpr (requires(T batch) { batch.target; }) {
      return can_pin<decltype(T::data)>() && can_pin<decltype(T::target)>();
    } else {
      return can_pin<decltype(T::data)>();
    }
  } else if constexpr (kIsOptional<T> || HasElements<T>) {
    return can_pin<typename T::value_type>();
  } else if constexpr (HasParts<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (can_pin<std::tuple_element_t<I, T>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

/// Moves the tensors of a batch into pinned memory. Blocks: until they are copied.
template <class T>
void pin(T& batch) {
  if constexpr (PlainValue<T>) {
    return;
  } else if constexpr (std::same_as<T, at::Tensor>) {
    pin_tensor(batch);
  } else if constexpr (PinsItself<T>) {
    batch = batch.pin_memory();
  } else if constexpr (kIsExample<T>) {
    pin(batch.data);
    if constexpr (requires { batch.target; }) pin(batch.target);
  } else if constexpr (kIsOptional<T>) {
    if (batch) pin(*batch);
  } else if constexpr (HasParts<T>) {
    std::apply([](auto&... parts) { (pin(parts), ...); }, batch);
  } else if constexpr (!PlainValue<typename T::value_type>) {
    for (auto& element : batch) pin(element);
  }
}

}  // namespace tessera::train
