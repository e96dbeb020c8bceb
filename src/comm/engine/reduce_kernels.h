#pragma once

#include <tessera/comm/communicator.h>

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::comm {

/// Whether `reduce_into` knows this type.
bool is_reducible(c10::ScalarType dtype);

/// Combines `sources` element by element, always in their given order, and writes the result to every one of
/// `destinations`, each of which may be one of the sources. Half and bfloat16 are accumulated in float and rounded
/// once. `kAvg` divides by `divisor`.
void reduce_into(std::span<std::byte* const> destinations, std::span<const std::byte* const> sources,
                 std::int64_t count, c10::ScalarType dtype, ReduceOp op, int divisor);

/// `data /= divisor`, for averages whose sum was made elsewhere.
void divide(std::byte* data, std::int64_t count, c10::ScalarType dtype, int divisor);

}  // namespace tessera::comm
