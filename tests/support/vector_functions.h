#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace tessera::testing {

/// What MKL's vector functions take the CPU for, -1 before the first of them was called; see Note [The first call of a
/// vector function]. Read from the variable that the first instruction of MKL's function loads. Nothing where LibTorch
/// comes without that function, or with another one.
inline std::optional<std::int32_t> cpu_of_vector_functions() {
  const auto* const code = static_cast<const std::byte*>(dlsym(RTLD_DEFAULT, "mkl_vml_serv_cpu_detect"));
  // mov eax, [rip + distance]
  constexpr std::array kLoad{std::byte{0x8b}, std::byte{0x05}};
  if (code == nullptr || std::memcmp(code, kLoad.data(), kLoad.size()) != 0) return std::nullopt;
  std::int32_t distance = 0;
  std::memcpy(&distance, code + kLoad.size(), sizeof(distance));
  std::int32_t cpu = 0;
  std::memcpy(&cpu, code + kLoad.size() + sizeof(distance) + distance, sizeof(cpu));
  return cpu;
}

}  // namespace tessera::testing
