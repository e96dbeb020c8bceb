#include "tessera/checkpoint/printed.h"

#include <array>
#include <cstdio>
#include <utility>

namespace tessera::app {

std::string size_text(std::uint64_t num_bytes) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e12, " TB"}, {1e9, " GB"}, {1e6, " MB"}, {1e3, " kB"}}};
  for (const auto& [unit, name] : kUnits) {
    const double number = static_cast<double>(num_bytes) / unit;
    if (number < 0.9995) continue;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), number < 9.995 ? "%.2f" : number < 99.95 ? "%.1f" : "%.0f", number);
    return std::string(text.data()) + name;
  }
  return std::to_string(num_bytes) + " B";
}

std::string counted(std::size_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // In UTF-8 the controls above 0x7f begin with 0xc2.
    const bool high_control = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (byte >= 0x20 && byte != 0x7f && !high_control) {
      result += text[i];
      continue;
    }
    const unsigned code = high_control ? static_cast<unsigned char>(text[++i]) : byte;
    result += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
  }
  return result;
}

std::size_t columns_of(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

std::string padded(const std::string& text, std::size_t width) {
  const std::size_t columns = columns_of(text);
  return columns < width ? text + std::string(width - columns, ' ') : text;
}

}  // namespace tessera::app
