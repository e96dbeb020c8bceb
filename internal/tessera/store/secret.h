#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::store {

/// 256 random bits that the processes of one job share and nobody else has: the key to their store.
/// Its bytes are overwritten when it is destroyed, and there is no way to print it but hex().
class Secret {
 public:
  static constexpr std::size_t kNumBytes = 32;

  /// A new one, from the operating system's random numbers.
  static Secret mint();

  /// Exactly 64 hexadecimal digits. Throws ConfigError for anything else, without repeating the text.
  static Secret from_hex(std::string_view text);

  /// The 64 digits in a file, which may end with a line end. Symbolic links are followed; what they lead to is checked.
  /// Throws ConfigError unless the file belongs to the effective user and is closed to its group and all others.
  static Secret from_file(const std::filesystem::path& path);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  /// To pass it on: in a file that only the user reads, or in the environment of a process of the same user.
  std::string hex() const;
  std::span<const unsigned char, kNumBytes> bytes() const { return bytes_; }

  /// Takes the same time wherever the two differ.
  friend bool operator==(const Secret& left, const Secret& right);

 private:
  Secret() = default;

  std::array<unsigned char, kNumBytes> bytes_{};
};

/// Called before each attempt to connect. Returns nothing while there is no secret yet; the client then tries again.
using SecretSource = std::function<std::optional<Secret>()>;

}  // namespace tessera::store
