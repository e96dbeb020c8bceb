#include "store/private_file.h"

#include <tessera/core/error.h>

#include <fcntl.h>

#include <cerrno>
#include <cstring>

namespace tessera::store {
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

}  // namespace tessera::store
