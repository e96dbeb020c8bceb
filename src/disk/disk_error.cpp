#include <tessera/disk/disk_error.h>

#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

namespace tessera::disk {
namespace {

/// The path itself, or the folder above it that exists.
std::filesystem::path nearest_existing(std::filesystem::path path) {
  std::error_code ignored;
  while (path.has_relative_path() && !std::filesystem::exists(path, ignored)) path = path.parent_path();
  return path.empty() ? "." : path;
}

std::string room_text(const std::filesystem::path& path, std::uint64_t num_bytes) {
  std::string text;
  if (num_bytes > 0) text = std::to_string(num_bytes) + " bytes are needed";
  struct statvfs found{};
  if (statvfs(nearest_existing(path).c_str(), &found) == 0) {
    const std::uint64_t num_free = static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
    text += (text.empty() ? "" : " and ") + std::to_string(num_free) + " are free";
  }
  return text.empty() ? "" : ": " + text;
}

std::string advice(const std::filesystem::path& path, int number, std::uint64_t num_bytes,
                   const std::string& to_need_less) {
  const std::string less = to_need_less.empty() ? "" : to_need_less + ", ";
  switch (number) {
    case ENOSPC:
      return room_text(path, num_bytes) + ". Free some, " + less + "or name a folder on another disk";
    case EDQUOT:
      return room_text(path, num_bytes) + ". Ask for a larger quota, " + less + "or name another folder";
    case EFBIG:
      return ". The file system, or the limit of the shell (ulimit -f), does not let a file be that large: save into "
             "smaller files";
    case EROFS:
      return ". Mount it for writing, or name another folder; a disk that became read-only by itself has a fault that "
             "the system's log names";
    case EACCES:
    case EPERM:
      return ". Give this user the right to write there, or name another folder";
    case ENOENT:
    case ESTALE:
      return ". Somebody removed the folder while it was in use, or its disk is no longer mounted";
    case EIO:
      return ". The disk failed, and what it holds of this file is unknown; the system's log names the fault";
    case EMFILE:
    case ENFILE:
      return ". Raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

StorageError disk_error(const std::filesystem::path& path, const std::string& what, int number, std::uint64_t num_bytes,
                        const std::string& to_need_less) {
  return StorageError{path.string() + " " + what + ": " + std::strerror(number) +
                      advice(path, number, num_bytes, to_need_less)};
}

}  // namespace tessera::disk
