#include "checkpoint/process/own_disk.h"

#include <tessera/core/descriptor.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "support/require.h"

namespace tessera::testing {
namespace {

[[noreturn]] void give_up(const char* what) {
  std::printf("no disk of its own: %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  std::_Exit(kNoNamespaces);
}

/// Who is not root becomes it in a namespace of users.
void become_root() {
  const std::string user = std::to_string(getuid());
  const std::string group = std::to_string(getgid());
  if (unshare(CLONE_NEWUSER) != 0) give_up("a namespace of users");
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
  std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
}

}  // namespace

void mount_own_disk(const std::filesystem::path& folder, std::uint64_t num_bytes) {
  if (geteuid() != 0) become_root();
  if (unshare(CLONE_NEWNS) != 0) give_up("a namespace of mounts");
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) give_up("private mounts");
  const std::string size = "size=" + std::to_string(num_bytes);
  if (mount("none", folder.c_str(), "tmpfs", 0, size.c_str()) != 0) give_up("a mount");
}

void make_read_only(const std::filesystem::path& disk, bool is_read_only) {
  unsigned long flags = MS_REMOUNT;
  if (is_read_only) flags |= MS_RDONLY;
  require_equal(mount(nullptr, disk.c_str(), nullptr, flags, nullptr), 0,
                std::string("remount: ") + std::strerror(errno));
}

Ballast::Ballast(const std::filesystem::path& disk, std::uint64_t num_left) : path_(disk / "ballast") {
  struct statvfs found{};
  require_equal(statvfs(disk.c_str(), &found), 0, "no disk");
  const std::uint64_t num_free = static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
  require(num_free > num_left, "so much is not free");
  const Descriptor file(open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
  require_equal(fallocate(file.get(), 0, 0, static_cast<off_t>(num_free - num_left)), 0, "no ballast");
}

Ballast::~Ballast() { std::filesystem::remove(path_); }

}  // namespace tessera::testing
