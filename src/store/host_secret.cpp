#include <tessera/core/error.h>
#include <tessera/store/host_secret.h>

#include <fcntl.h>
#include <openssl/crypto.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "store/private_file.h"

namespace tessera::store {
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

/// Writes the secret into a new file and then gives it the name, so that no reader sees a part of it and none reads an
/// earlier job's file through a name that is being rewritten.
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

}  // namespace tessera::store
