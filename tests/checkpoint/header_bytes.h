#pragma once

#include <tessera/checkpoint/safetensors_layout.h>

#include <cstdint>
#include <span>
#include <string>

namespace tessera::testing {

inline std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

/// A file with this header and so many bytes behind it. `stated` is the length that it states; by default the true one.
inline std::string file_with(const std::string& header, std::size_t num_data_bytes, std::uint64_t stated) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>((stated >> (8 * i)) & 0xff);
  return file + header + std::string(num_data_bytes, '\x01');
}

inline std::string file_with(const std::string& header, std::size_t num_data_bytes) {
  return file_with(header, num_data_bytes, header.size());
}

inline SafetensorsLayout parse(const std::string& file) {
  return SafetensorsLayout::parse(std::as_bytes(std::span(file)), "some.safetensors");
}

}  // namespace tessera::testing
