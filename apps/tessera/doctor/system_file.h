#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::doctor {

/// The first line of a file of /proc or /sys; empty when there is no such file.
inline std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "23.5 GiB"
inline std::string bytes_text(std::uint64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMiB;
  char text[32];
  std::snprintf(text, sizeof(text), mib < 1024 ? "%.0f MiB" : "%.1f GiB", mib < 1024 ? mib : mib / 1024);
  return text;
}

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

}  // namespace tessera::doctor
