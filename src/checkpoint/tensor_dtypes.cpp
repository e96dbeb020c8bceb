#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/error.h>

#include <c10/core/ScalarType.h>

#include <array>
#include <utility>

namespace tessera {
namespace {

constexpr std::array<std::pair<StoredDtype, at::ScalarType>, 17> kPairs = {{
    {StoredDtype::kBool, at::kBool},
    {StoredDtype::kU8, at::kByte},
    {StoredDtype::kI8, at::kChar},
    {StoredDtype::kF8E5M2, at::kFloat8_e5m2},
    {StoredDtype::kF8E4M3, at::kFloat8_e4m3fn},
    {StoredDtype::kF8E8M0, at::kFloat8_e8m0fnu},
    {StoredDtype::kI16, at::kShort},
    {StoredDtype::kU16, at::kUInt16},
    {StoredDtype::kF16, at::kHalf},
    {StoredDtype::kBF16, at::kBFloat16},
    {StoredDtype::kI32, at::kInt},
    {StoredDtype::kU32, at::kUInt32},
    {StoredDtype::kF32, at::kFloat},
    {StoredDtype::kC64, at::kComplexFloat},
    {StoredDtype::kF64, at::kDouble},
    {StoredDtype::kI64, at::kLong},
    {StoredDtype::kU64, at::kUInt64},
}};

}  // namespace

StoredDtype to_stored_dtype(at::ScalarType type) {
  for (const auto& [stored, scalar] : kPairs) {
    if (scalar == type) return stored;
  }
  throw ConfigError(std::string("a safetensors file has no type for tensors of ") + c10::toString(type) +
                    "; convert them first");
}

at::ScalarType to_scalar_type(StoredDtype dtype) {
  for (const auto& [stored, scalar] : kPairs) {
    if (stored == dtype) return scalar;
  }
  throw InternalError("no LibTorch type for the stored type " + std::string(dtype_name(dtype)));
}

}  // namespace tessera
