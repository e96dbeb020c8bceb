#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::testing {

/// Bytes of a file that a test makes by hand, from the description of the format.
class RawFile {
 public:
  template <class T>
  RawFile& add(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  template <class T>
  RawFile& add(const std::vector<T>& numbers) {
    for (const T number : numbers) add(number);
    return *this;
  }
  RawFile& text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  /// The number at this offset becomes another.
  template <class T>
  RawFile& set(std::size_t offset, T number) {
    bytes_.replace(offset, sizeof(number), reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  RawFile& resize(std::size_t size) {
    bytes_.resize(size);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }
  void write(const std::string& path) const { std::ofstream(path, std::ios::binary) << bytes_; }

 private:
  std::string bytes_;
};

/// An index of four sequences (3, 0, 2 and 1 tokens of uint16) in two documents.
inline RawFile sample_index() {
  return RawFile()
      .text({"MMIDIDX\0\0", 9})
      .add(std::uint64_t{1})
      .add(std::uint8_t{8})
      .add(std::uint64_t{4})
      .add(std::uint64_t{3})
      .add(std::vector<std::int32_t>{3, 0, 2, 1})
      .add(std::vector<std::int64_t>{0, 6, 6, 10})
      .add(std::vector<std::int64_t>{0, 2, 4});
}
inline RawFile sample_data() { return RawFile().add(std::vector<std::uint16_t>{10, 11, 65535, 20, 21, 30}); }

inline RawFile llmc_file(std::int32_t magic, std::int32_t version, std::int32_t num_tokens) {
  return RawFile().add(magic).add(version).add(num_tokens).resize(1024);
}

}  // namespace tessera::testing
