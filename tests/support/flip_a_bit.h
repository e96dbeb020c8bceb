#pragma once

#include <filesystem>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>

namespace tessera::testing {

/// Damages a file as a disk might: a bit of the byte at `offset` is another. A negative one counts from the end.
inline void flip_a_bit(const std::filesystem::path& path, std::streamoff offset) {
  const auto start = offset < 0 ? std::ios::end : std::ios::beg;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(offset, start);
  const auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset, start);
  file.put(byte);
  if (!file.flush()) throw std::runtime_error(path.string() + " has no byte " + std::to_string(offset));
}

}  // namespace tessera::testing
