#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

/// The element types of safetensors files that LibTorch has too, from the smallest to the largest. The order is that of
/// the format's own library, which sorts by it when it writes.
enum class StoredDtype {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

/// As files write it: "BF16".
std::string_view dtype_name(StoredDtype dtype);
/// None for a name that is not in the list, as the types of four and six bits.
std::optional<StoredDtype> dtype_of_name(std::string_view name);
/// Of one element.
std::int64_t dtype_bytes(StoredDtype dtype);

}  // namespace tessera
