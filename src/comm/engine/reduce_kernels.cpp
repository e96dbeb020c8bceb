#include "comm/engine/reduce_kernels.h"

#include <tessera/core/error.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

namespace tessera::comm {
namespace {

// Small enough that the accumulators stay in the first-level cache, so that every source is read from memory once and
// every destination written once.
constexpr std::int64_t kBlock = 2048;

template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<c10::Half> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::BFloat16> {
  using type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

struct Add {
  template <typename A>
  A operator()(A a, A b) const {
    return static_cast<A>(a + b);
  }
};
struct Multiply {
  template <typename A>
  A operator()(A a, A b) const {
    return static_cast<A>(a * b);
  }
};
// A NaN on either side wins, as in ATen's minimum and maximum.
struct Minimum {
  template <typename A>
  A operator()(A a, A b) const {
    return a != a || a < b ? a : b;
  }
};
struct Maximum {
  template <typename A>
  A operator()(A a, A b) const {
    return a != a || a > b ? a : b;
  }
};

template <typename T, typename Combine>
void combine_sources(Accumulator<T>* __restrict accumulators, std::span<const std::byte* const> sources,
                     std::int64_t begin, std::int64_t length, Combine combine) {
  using A = Accumulator<T>;
  const auto* first = reinterpret_cast<const T*>(sources[0]) + begin;
  if (sources.size() == 1) {
    for (std::int64_t i = 0; i < length; ++i) accumulators[i] = static_cast<A>(first[i]);
    return;
  }
  const auto* second = reinterpret_cast<const T*>(sources[1]) + begin;
  for (std::int64_t i = 0; i < length; ++i) {
    accumulators[i] = combine(static_cast<A>(first[i]), static_cast<A>(second[i]));
  }
  for (std::size_t s = 2; s < sources.size(); ++s) {
    const auto* next = reinterpret_cast<const T*>(sources[s]) + begin;
    for (std::int64_t i = 0; i < length; ++i) accumulators[i] = combine(accumulators[i], static_cast<A>(next[i]));
  }
}

template <typename T>
void store(std::byte* destination, const Accumulator<T>* accumulators, std::int64_t begin, std::int64_t length) {
  auto* out = reinterpret_cast<T*>(destination) + begin;
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    std::memcpy(out, accumulators, static_cast<std::size_t>(length) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(accumulators[i]);
  }
}

template <typename A>
void divide_all(A* values, std::int64_t length, int divisor) {
  if constexpr (std::is_floating_point_v<A>) {
    const auto by = static_cast<A>(divisor);
    for (std::int64_t i = 0; i < length; ++i) values[i] /= by;
  }
}

template <typename T, typename Combine>
void reduce_blocks(std::span<std::byte* const> destinations, std::span<const std::byte* const> sources,
                   std::int64_t count, int divisor, Combine combine) {
  std::array<Accumulator<T>, kBlock> accumulators;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    combine_sources<T>(accumulators.data(), sources, begin, length, combine);
    if (divisor > 1) divide_all(accumulators.data(), length, divisor);
    for (std::byte* destination : destinations) store<T>(destination, accumulators.data(), begin, length);
  }
}

template <typename T>
void reduce_typed(std::span<std::byte* const> destinations, std::span<const std::byte* const> sources,
                  std::int64_t count, ReduceOp op, int divisor) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_blocks<T>(destinations, sources, count, 1, Add());
    case ReduceOp::kAvg:
      return reduce_blocks<T>(destinations, sources, count, divisor, Add());
    case ReduceOp::kMin:
      return reduce_blocks<T>(destinations, sources, count, 1, Minimum());
    case ReduceOp::kMax:
      return reduce_blocks<T>(destinations, sources, count, 1, Maximum());
    case ReduceOp::kProduct:
      return reduce_blocks<T>(destinations, sources, count, 1, Multiply());
  }
}

template <typename Function>
bool with_type(c10::ScalarType dtype, Function function) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return function(float()), true;
    case c10::ScalarType::Double:
      return function(double()), true;
    case c10::ScalarType::Half:
      return function(c10::Half()), true;
    case c10::ScalarType::BFloat16:
      return function(c10::BFloat16()), true;
    case c10::ScalarType::Long:
      return function(std::int64_t()), true;
    case c10::ScalarType::Int:
      return function(std::int32_t()), true;
    case c10::ScalarType::Short:
      return function(std::int16_t()), true;
    case c10::ScalarType::Char:
      return function(std::int8_t()), true;
    case c10::ScalarType::Byte:
      return function(std::uint8_t()), true;
    case c10::ScalarType::Bool:
      return function(bool()), true;
    default:
      return false;
  }
}

}  // namespace

bool is_reducible(c10::ScalarType dtype) {
  return with_type(dtype, [](auto) {});
}

void reduce_into(std::span<std::byte* const> destinations, std::span<const std::byte* const> sources,
                 std::int64_t count, c10::ScalarType dtype, ReduceOp op, int divisor) {
  const bool known =
      with_type(dtype, [&](auto zero) { reduce_typed<decltype(zero)>(destinations, sources, count, op, divisor); });
  if (!known) throw ConfigError(std::string("tensors of type ") + c10::toString(dtype) + " cannot be reduced");
}

void divide(std::byte* data, std::int64_t count, c10::ScalarType dtype, int divisor) {
  std::array<std::byte*, 1> destination{data};
  std::array<const std::byte*, 1> source{data};
  reduce_into(destination, source, count, dtype, ReduceOp::kAvg, divisor);
}

}  // namespace tessera::comm
