#pragma once

#include <tessera/checkpoint/stored_dtype.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One tensor of a file: what it is, and where its bytes lie behind the header.
struct StoredTensor {
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< the first byte, counted from the end of the header
  std::uint64_t end = 0;    ///< the byte behind the last

  std::uint64_t num_bytes() const { return end - begin; }
  bool operator==(const StoredTensor&) const = default;
};

/// Which bytes of a safetensors file are what. Plain data, without tensors and without a file: every rank can compute
/// the layout of a file that all of them write. docs/formats/safetensors.md says what is accepted.
/// Thread-safety: may be read from any thread.
class SafetensorsLayout {
 public:
  /// Notes that a file carries beside its tensors.
  using Metadata = std::map<std::string, std::string>;

  /// The layout of a file that is to be written. `begin` and `end` of the tensors are filled in: larger element types
  /// first and then by name, so that every tensor lies at a multiple of its element size.
  /// Throws ConfigError for names that are listed twice, are reserved or are not UTF-8, for sizes below 0 and for a
  /// header above the limit.
  /// The tensors' bytes start at a multiple of `alignment`, itself one of 8: the header is filled up with spaces.
  static SafetensorsLayout plan(std::vector<StoredTensor> tensors, Metadata metadata = {}, std::uint64_t alignment = 8);

  /// The layout of a file that exists, of which only the header is looked at. `origin` names it in messages.
  /// Throws StorageError for whatever the format does not allow.
  static SafetensorsLayout parse(std::span<const std::byte> file, const std::string& origin) {
    return parse(file, file.size(), origin);
  }
  /// The same of a file with so many bytes, of which `start` holds the first: at least the header.
  static SafetensorsLayout parse(std::span<const std::byte> start, std::uint64_t num_file_bytes,
                                 const std::string& origin);

  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }
  /// Null when there is none.
  const StoredTensor* find(std::string_view name) const;
  /// Throws ConfigError when there is none; `origin` names the file in the message.
  const StoredTensor& at(std::string_view name, std::string_view origin) const;

  /// Where the tensors' bytes start: behind the header.
  std::uint64_t data_start() const { return data_start_; }
  std::uint64_t num_data_bytes() const { return tensors_.empty() ? 0 : tensors_.back().end; }
  std::uint64_t num_file_bytes() const { return data_start_ + num_data_bytes(); }

  /// The first data_start() bytes of a file that was planned: the header's length, and the header.
  std::string header() const;

  /// What the format allows as a header: 100 MB.
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

 private:
  SafetensorsLayout(std::vector<StoredTensor> tensors, Metadata metadata);

  std::vector<StoredTensor> tensors_;
  Metadata metadata_;
  std::vector<std::size_t> by_name_;  // places in tensors_, sorted by name
  std::uint64_t alignment_ = 8;
  std::uint64_t data_start_ = 0;
};

}  // namespace tessera
