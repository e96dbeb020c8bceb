#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera {

class Communicator;

/// A sum of squares that is never rounded on the way, so that it is the same however its terms are ordered, cut into
/// parts, or spread over threads and ranks.
///
/// Note [Sums without rounding]
/// Every finite double is a whole number of the smallest one, 2^-1074. The sum is kept as such a number, in digits
/// of 32 bits that lie in 64: adding a term touches two digits, and the digits of two sums, or of many ranks, can be
/// added one by one. Carries are settled every thousand terms. It is rounded once, when it is read.
/// Thread-safety: none.
class ExactSum {
 public:
  /// The squares of all elements. Those of float, half and bfloat16 are exact; those of double are rounded to double,
  /// each by itself. Elsewhere than on the CPU the elements are copied there.
  void add_squares(const at::Tensor& values);
  void add(const ExactSum& other);
  /// The sum of all ranks' sums, on every rank. Collective: over `comm`.
  void all_reduce(const Communicator& comm);
  /// Infinite or not a number when a term is, or infinite when no double is as large.
  double value() const;

 private:
  static constexpr std::size_t kNumDigits = 68;  // 2^-1074 to 2^1024, times more terms than there are addresses
  using Digits = std::array<std::uint64_t, kNumDigits>;

  template <class Number>
  void add_squares_of(const Number* values, std::int64_t count);
  void settle_carries();

  Digits digits_{};
  std::uint64_t num_infinite_ = 0;
  std::uint64_t num_not_numbers_ = 0;
};

}  // namespace tessera
