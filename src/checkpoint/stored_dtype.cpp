#include <tessera/checkpoint/stored_dtype.h>

#include <array>
#include <cstddef>

namespace tessera {
namespace {

struct Known {
  std::string_view name;
  std::int64_t num_bytes;
};

// In the order of the enumerators.
constexpr std::array kKnown = {
    Known{"BOOL", 1}, Known{"U8", 1},  Known{"I8", 1},  Known{"F8_E5M2", 1}, Known{"F8_E4M3", 1}, Known{"F8_E8M0", 1},
    Known{"I16", 2},  Known{"U16", 2}, Known{"F16", 2}, Known{"BF16", 2},    Known{"I32", 4},     Known{"U32", 4},
    Known{"F32", 4},  Known{"C64", 8}, Known{"F64", 8}, Known{"I64", 8},     Known{"U64", 8},
};
static_assert(kKnown.size() == static_cast<std::size_t>(StoredDtype::kU64) + 1);

const Known& known(StoredDtype dtype) { return kKnown.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::string_view dtype_name(StoredDtype dtype) { return known(dtype).name; }

std::optional<StoredDtype> dtype_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    if (kKnown[i].name == name) return static_cast<StoredDtype>(i);
  }
  return std::nullopt;
}

std::int64_t dtype_bytes(StoredDtype dtype) { return known(dtype).num_bytes; }

}  // namespace tessera
