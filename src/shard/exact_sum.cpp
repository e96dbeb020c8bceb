#include <tessera/comm/communicator.h>
#include <tessera/shard/exact_sum.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

namespace tessera {
namespace {

constexpr int kDigitBits = 32;
constexpr std::uint64_t kDigitMask = 0xffffffff;
constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMaxExponent = 0x7ff;

// Terms next to each other are of one size as a rule: they go to sums of their own in turn, so that adding one need not
// wait for the one before.
constexpr std::int64_t kNumTurns = 4;
// The upper digit of a term has up to 52 bits: so many of them fit 64.
constexpr std::int64_t kTermsPerCarry = 1024;

// A task for a thread.
constexpr std::int64_t kGrain = std::int64_t{1} << 16;

}  // namespace

template <class Number>
void ExactSum::add_squares_of(const Number* values, std::int64_t count) {
  std::array<Digits, kNumTurns> sums{};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    const auto bits = std::bit_cast<std::uint64_t>(value * value);
    const std::uint64_t exponent = (bits >> kMantissaBits) & kMaxExponent;
    if (exponent == kMaxExponent) {
      ++(std::isnan(value) ? num_not_numbers_ : num_infinite_);
      continue;
    }
    // The smallest numbers have an exponent of 0 that means 1, and no leading bit.
    const std::uint64_t is_normal = exponent > 0 ? 1 : 0;
    const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << kMantissaBits) - 1)) | (is_normal << kMantissaBits);
    const std::uint64_t place = exponent - is_normal;
    const std::uint64_t shift = place % kDigitBits;
    Digits& sum = sums[static_cast<std::size_t>(i % kNumTurns)];
    sum[place / kDigitBits] += (mantissa << shift) & kDigitMask;
    sum[place / kDigitBits + 1] += mantissa >> (kDigitBits - shift);
  }
  for (const Digits& sum : sums) {
    for (std::size_t i = 0; i < kNumDigits; ++i) digits_[i] += sum[i];
    settle_carries();
  }
}

void ExactSum::settle_carries() {
  std::uint64_t carry = 0;
  for (std::uint64_t& digit : digits_) {
    carry += digit;
    digit = carry & kDigitMask;
    carry >>= kDigitBits;
  }
}

void ExactSum::add_squares(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  at::Tensor numbers = values.detach().to(at::kCPU);
  if (numbers.scalar_type() != at::kDouble) numbers = numbers.to(at::kFloat);
  numbers = numbers.contiguous();
  std::mutex mutex;
  at::parallel_for(0, numbers.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    ExactSum part;
    for (std::int64_t i = begin; i < end; i += kNumTurns * kTermsPerCarry) {
      const std::int64_t count = std::min(kNumTurns * kTermsPerCarry, end - i);
      if (numbers.scalar_type() == at::kDouble) {
        part.add_squares_of(numbers.const_data_ptr<double>() + i, count);
      } else {
        part.add_squares_of(numbers.const_data_ptr<float>() + i, count);
      }
    }
    const std::lock_guard lock(mutex);
    add(part);
  });
}

void ExactSum::add(const ExactSum& other) {
  for (std::size_t i = 0; i < kNumDigits; ++i) digits_[i] += other.digits_[i];
  num_infinite_ += other.num_infinite_;
  num_not_numbers_ += other.num_not_numbers_;
  settle_carries();
}

void ExactSum::all_reduce(const Communicator& comm) {
  if (comm.size() == 1) return;
  const at::Tensor sums = at::empty({static_cast<std::int64_t>(kNumDigits) + 2}, at::kLong);
  auto* const numbers = sums.mutable_data_ptr<std::int64_t>();
  std::transform(digits_.begin(), digits_.end(), numbers, [](std::uint64_t d) { return static_cast<std::int64_t>(d); });
  numbers[kNumDigits] = static_cast<std::int64_t>(num_infinite_);
  numbers[kNumDigits + 1] = static_cast<std::int64_t>(num_not_numbers_);
  comm.all_reduce(sums);
  std::transform(numbers, numbers + kNumDigits, digits_.begin(), [](auto d) { return static_cast<std::uint64_t>(d); });
  num_infinite_ = static_cast<std::uint64_t>(numbers[kNumDigits]);
  num_not_numbers_ = static_cast<std::uint64_t>(numbers[kNumDigits + 1]);
  settle_carries();
}

double ExactSum::value() const {
  if (num_not_numbers_ > 0) return std::numeric_limits<double>::quiet_NaN();
  if (num_infinite_ > 0) return std::numeric_limits<double>::infinity();
  std::size_t top = kNumDigits - 1;
  while (top > 0 && digits_[top] == 0) --top;
  // From the lowest digit up, so that what is rounded away is far below the digits that count.
  double sum = 0;
  for (std::size_t i = 0; i <= top; ++i) sum = sum * 0x1p-32 + static_cast<double>(digits_[i]);
  return std::ldexp(sum, static_cast<int>(top) * kDigitBits - 1074);
}

}  // namespace tessera
