#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

class Communicator;

/// A sum of squares without intermediate rounding. The result is the same however the terms are ordered, cut into
/// parts, or spread over threads and ranks.
///
/// Note [Sums without rounding]
/// Every finite double is a whole multiple of the smallest one, 2^-1074. The sum is kept as that multiple, in digits of
/// 32 bits, each stored in 64. Adding a term touches two digits, and the digits of two sums, or of many ranks, can be
/// added one by one. Carries are settled every thousand terms. The sum is rounded once, when it is read.
/// Thread-safety: none.
class ExactSum {
 public:
  /// Adds the squares of all elements. Squares of float, half and bfloat16 are exact; each square of a double is
  /// rounded to double. Of a tensor on a device, the device's own sum in double is added, and the host waits once for
  /// all of them.
  void add_squares(const std::vector<at::Tensor>& tensors);
  void add(const ExactSum& other);
  /// The sum of all ranks' sums, on every rank. Collective: over `comm`.
  void all_reduce(const Communicator& comm);
  /// Infinite or NaN when a term is; infinite also when the sum is larger than any double.
  double value() const;

 private:
  static constexpr std::size_t kNumDigits = 68;  // 2^-1074 to 2^1024, times more terms than there are addresses
  using Digits = std::array<std::uint64_t, kNumDigits>;

  void add_squares_on_cpu(const at::Tensor& values);
  template <class Number>
  void add_squares_of(const Number* values, std::int64_t count);
  void settle_carries();

  Digits digits_{};
  std::uint64_t num_infinite_ = 0;
  std::uint64_t num_not_numbers_ = 0;
};

}  // namespace tessera
