#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <cerrno>
#include <cstring>

#include "store/private_file.h"

namespace tessera::store {
namespace {

constexpr std::size_t kNumDigits = 2 * Secret::kNumBytes;

int digit_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Secret Secret::mint() {
  Secret secret;
  if (RAND_priv_bytes(secret.bytes_.data(), static_cast<int>(secret.bytes_.size())) != 1) {
    throw StorageError("the operating system gives no random numbers; is /dev/urandom there?");
  }
  return secret;
}

Secret Secret::from_hex(std::string_view text) {
  if (text.size() != kNumDigits) {
    throw ConfigError("a secret has " + std::to_string(kNumDigits) + " hexadecimal digits; found " +
                      std::to_string(text.size()) + " characters. Make one with: tessera secret");
  }
  Secret secret;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int value = digit_value(text[i]);
    if (value < 0) {
      throw ConfigError("a secret has hexadecimal digits only; character " + std::to_string(i + 1) +
                        " is none. Make one with: tessera secret");
    }
    secret.bytes_[i / 2] = static_cast<unsigned char>(secret.bytes_[i / 2] << 4 | value);
  }
  return secret;
}

Secret Secret::from_file(const std::filesystem::path& path) {
  // Without O_NONBLOCK, a pipe in the file's place would hold the process up before it can be refused.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    throw ConfigError("the secret's file " + path.string() + " cannot be opened: " + std::strerror(errno) +
                      "; expected a file of this user with mode 600 and 64 hexadecimal digits");
  }
  std::string text = read_private_file(file, path, kNumDigits + 2);
  std::string_view digits = text;
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  try {
    Secret secret = from_hex(digits);
    OPENSSL_cleanse(text.data(), text.size());
    return secret;
  } catch (const ConfigError& error) {
    throw ConfigError(path.string() + ": " + error.what());
  }
}

std::string Secret::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(kNumDigits);
  for (const unsigned char byte : bytes_) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool operator==(const Secret& left, const Secret& right) {
  return CRYPTO_memcmp(left.bytes_.data(), right.bytes_.data(), Secret::kNumBytes) == 0;
}

}  // namespace tessera::store
