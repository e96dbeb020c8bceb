#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/store/host_secret.h>
#include <tessera/store/secret.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <string>
#include <sys/stat.h>

namespace tessera::store {

/// Throws ConfigError, with what was found and the command that corrects it, unless the file or folder belongs to the
/// effective user and is closed to its group and all others.
void require_private(const struct stat& found, const std::filesystem::path& path);

/// Opens the folder, and makes it when it is missing. A symbolic link is refused: another user may have chosen its
/// target.
/// Throws ConfigError when it is not private, StorageError when it cannot be made.
Descriptor open_private_folder(const std::filesystem::path& path);

/// Reads an open file. Throws ConfigError unless it is a private regular file of at most `max_bytes`.
/// The path is for messages.
std::string read_private_file(const Descriptor& file, const std::filesystem::path& path, std::size_t max_bytes);

namespace {

std::string file_name(int port) { return "store-" + std::to_string(port) + ".secret"; }

bool is_own_folder(const char* path) {
  struct stat found{};
  return path[0] == '/' && lstat(path, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

StorageError cannot_write(const std::filesystem::path& path, const char* what) {
  return StorageError("the secret " + path.string() + " cannot be " + what + ": " + std::strerror(errno));
}

void write_all(const Descriptor& file, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t count = write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw cannot_write(path, "written");
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Writes the secret into a new file and then renames it, so that a reader finds either the whole secret or an earlier
/// file, never a part.
struct stat publish(const Secret& secret, const Descriptor& folder, const std::filesystem::path& path) {
  const std::string name = path.filename();
  const std::string unfinished = name + "." + std::to_string(getpid());
  unlinkat(folder.get(), unfinished.c_str(), 0);
  const Descriptor file(
      openat(folder.get(), unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw cannot_write(path, "made");
  std::string digits = secret.hex();
  struct stat made{};
  try {
    write_all(file, digits, path);
    if (fstat(file.get(), &made) != 0 || renameat(folder.get(), unfinished.c_str(), folder.get(), name.c_str()) != 0) {
      throw cannot_write(path, "published");
    }
  } catch (const StorageError&) {
    unlinkat(folder.get(), unfinished.c_str(), 0);
    throw;
  }
  OPENSSL_cleanse(digits.data(), digits.size());
  return made;
}

}  // namespace

std::filesystem::path host_secret_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  // After su or sudo the variable may still name the other user's folder.
  if (runtime != nullptr && is_own_folder(runtime)) return std::filesystem::path(runtime) / "tessera";
  return "/tmp/tessera-" + std::to_string(geteuid());
}

HostSecret::HostSecret(int port, const std::filesystem::path& folder)
    : secret_(Secret::mint()), path_(folder / file_name(port)) {
  const struct stat made = publish(secret_, open_private_folder(folder), path_);
  device_ = made.st_dev;
  inode_ = made.st_ino;
}

HostSecret::~HostSecret() {
  struct stat found{};
  if (lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_) unlink(path_.c_str());
}

std::optional<Secret> find_host_secret(int port, const std::filesystem::path& folder) {
  const Descriptor opened = open_private_folder(folder);
  const std::filesystem::path path = folder / file_name(port);
  const Descriptor file(openat(opened.get(), path.filename().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) {
    throw ConfigError("the secret " + path.string() + " cannot be opened (" + std::strerror(errno) +
                      "); expected a file of this user's own, not a symbolic link. Remove it");
  }
  std::string digits = read_private_file(file, path, 2 * Secret::kNumBytes);
  Secret secret = Secret::from_hex(digits);
  OPENSSL_cleanse(digits.data(), digits.size());
  return secret;
}

namespace {

constexpr mode_t kOthersMask = 077;

std::string octal(mode_t mode) {
  std::string digits;
  for (int shift = 6; shift >= 0; shift -= 3) digits += static_cast<char>('0' + ((mode >> shift) & 7));
  return digits;
}

struct stat status_of(const Descriptor& file, const std::filesystem::path& path) {
  struct stat found{};
  if (fstat(file.get(), &found) != 0)
    throw StorageError(path.string() + " cannot be inspected: " + std::strerror(errno));
  return found;
}

}  // namespace

void require_private(const struct stat& found, const std::filesystem::path& path) {
  const std::string name = path.string();
  if (found.st_uid != geteuid()) {
    throw ConfigError(name + " belongs to user " + std::to_string(found.st_uid) + ", and this process runs as user " +
                      std::to_string(geteuid()) +
                      ": whoever owns it can read and change it. Use one of your own (chown " +
                      std::to_string(geteuid()) + " " + name + ")");
  }
  if ((found.st_mode & kOthersMask) != 0) {
    const char* wanted = S_ISDIR(found.st_mode) ? "700" : "600";
    throw ConfigError(name + " has mode " + octal(found.st_mode) +
                      ", so others than its owner can reach it; expected " + wanted + ". Run: chmod " + wanted + " " +
                      name);
  }
}

Descriptor open_private_folder(const std::filesystem::path& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw StorageError("the folder " + path.string() + " cannot be made: " + std::strerror(errno) +
                       "; set XDG_RUNTIME_DIR to a folder of your own");
  }
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    throw ConfigError(path.string() + " is no folder of this user's own (" + std::strerror(errno) +
                      "); expected a folder, not a symbolic link. Remove it, or set XDG_RUNTIME_DIR to another");
  }
  require_private(status_of(folder, path), path);
  return folder;
}

std::string read_private_file(const Descriptor& file, const std::filesystem::path& path, std::size_t max_bytes) {
  const struct stat found = status_of(file, path);
  if (!S_ISREG(found.st_mode)) throw ConfigError(path.string() + " is no regular file; expected one with a secret");
  require_private(found, path);
  std::string text(max_bytes + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t count = read(file.get(), text.data() + length, text.size() - length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw StorageError(path.string() + " cannot be read: " + std::strerror(errno));
    if (count == 0) break;
    length += static_cast<std::size_t>(count);
  }
  if (length > max_bytes) {
    throw ConfigError(path.string() + " has more than the " + std::to_string(max_bytes) + " bytes of a secret");
  }
  text.resize(length);
  return text;
}

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
