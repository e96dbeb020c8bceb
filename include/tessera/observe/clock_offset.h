#pragma once

#include <cstdint>
#include <span>

namespace tessera::observe {

/// A question to another clock: when it was asked and answered by ours, and what the other one said.
struct RoundTrip {
  std::int64_t asked_ns = 0;
  std::int64_t other_ns = 0;
  std::int64_t answered_ns = 0;
};

/// How far another clock is ahead of ours.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;  ///< the true offset is at most so far from `offset_ns`
};

/// The offset by the quickest of the round trips. The answer was given somewhere between question and arrival, so half
/// of that time bounds the error, however unlike the two ways are; the quickest bounds it best.
/// Throws InternalError when there is none.
ClockOffset estimate_offset(std::span<const RoundTrip> trips);

/// Ours to the second clock, of which a third is ahead by `further`.
ClockOffset operator+(const ClockOffset& offset, const ClockOffset& further);

}  // namespace tessera::observe
