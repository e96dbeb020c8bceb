#pragma once

#include <tessera/store/secret.h>

#include <sys/types.h>

#include <filesystem>
#include <optional>

namespace tessera::store {

/// Where the processes of one user on one host find each other's secrets: $XDG_RUNTIME_DIR/tessera, or, when that
/// variable names no folder of the effective user, /tmp/tessera-UID.
std::filesystem::path host_secret_folder();

/// A secret for a job on ONE host whose launcher provided none. The process that hosts the store makes the secret and
/// publishes it, under the store's port, in a folder that only the user can open.
class HostSecret {
 public:
  /// Mints a secret and publishes it. Replaces a secret that an earlier job may have left for that port.
  /// Throws ConfigError when the folder is not private to the effective user, StorageError when it cannot be written.
  explicit HostSecret(int port, const std::filesystem::path& folder = host_secret_folder());
  /// Removes the published secret, unless a later job has replaced it.
  ~HostSecret();
  HostSecret(const HostSecret&) = delete;
  HostSecret& operator=(const HostSecret&) = delete;

  const Secret& secret() const { return secret_; }

 private:
  Secret secret_;
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// The secret that is published for the port now; nothing when there is none. It may still be an earlier job's, so call
/// this again before each attempt to connect: see SecretSource.
/// Throws ConfigError when folder or file is not private to the effective user.
std::optional<Secret> find_host_secret(int port, const std::filesystem::path& folder = host_secret_folder());

}  // namespace tessera::store
