#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
/// None for a name that is not in the list, such as the types of four and six bits.
std::optional<StoredDtype> dtype_of_name(std::string_view name);
/// The bytes of one element.
std::int64_t dtype_bytes(StoredDtype dtype);

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
  /// The tensors' bytes start at a multiple of `alignment`, which is a multiple of 8; spaces fill up the header.
  static SafetensorsLayout plan(std::vector<StoredTensor> tensors, Metadata metadata = {}, std::uint64_t alignment = 8);

  /// The layout of an existing file; only its header is read. `origin` names it in messages.
  /// Throws StorageError for whatever the format does not allow.
  static SafetensorsLayout parse(std::span<const std::byte> file, const std::string& origin) {
    return parse(file, file.size(), origin);
  }
  /// The same for a file of `num_file_bytes`. `start` holds its first bytes, at least the header.
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

class MappedFile;

/// A safetensors file, open for reading. Opening reads the header and checks all of it; a tensor's bytes are read from
/// the disk when they are first accessed. A handle: cheap to copy.
/// Requires: nobody writes into the file or shortens it meanwhile. Tessera replaces files, and never changes them.
/// Thread-safety: all members may be called from any thread.
class SafetensorsBytes {
 public:
  /// Throws StorageError, saying what was expected and what was found, for a file that is not as the format asks.
  explicit SafetensorsBytes(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsLayout& layout() const { return *layout_; }

  /// The bytes as they lie in the file, little-endian. They live as long as a copy of this object.
  /// Throws ConfigError when there is none of that name.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const SafetensorsLayout> layout_;
};

/// The tensors of a model that was saved as Hugging Face does: one safetensors file, or several with an index.
/// Thread-safety: all members may be called from any thread.
class SafetensorsFolderBytes {
 public:
  /// `path` is a safetensors file, an index (`*.json`), or a folder with either. Opens and checks all files.
  /// Throws StorageError when index and files do not agree, ConfigError when a folder holds neither or both forms.
  explicit SafetensorsFolderBytes(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return place_of_.contains(name); }
  /// These throw ConfigError when there is none of that name.
  const StoredTensor& at(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return file_with(name).bytes(name); }

 protected:
  const SafetensorsBytes& file_with(const std::string& name) const;

 private:
  void open_indexed(const std::filesystem::path& index);
  void open_single(const std::filesystem::path& file);

  std::filesystem::path path_;
  std::vector<SafetensorsBytes> files_;
  std::map<std::string, std::size_t> place_of_;  // in files_
};

}  // namespace tessera
