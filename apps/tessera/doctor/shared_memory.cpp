// Memory that ranks of a host share: ours is an anonymous file, other libraries use /dev/shm.
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/doctor/checks.h"
#include "tessera/doctor/system_file.h"

namespace tessera::doctor {
namespace {

/// Why an anonymous file as sparse and as large as Tessera's cannot be written to; empty when it can.
std::string anonymous_file_fault() {
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  const int file = memfd_create("tessera_doctor", MFD_CLOEXEC);
  if (file < 0) return std::string("memfd_create: ") + std::strerror(errno);
  std::string fault;
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(kBytes)) != 0) {
    fault = "ftruncate to " + bytes_text(kBytes) + ": " + std::strerror(errno);
  } else {
    memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (memory == MAP_FAILED) fault = "mmap of " + bytes_text(kBytes) + ": " + std::strerror(errno);
  }
  if (memory != MAP_FAILED) {
    static_cast<char*>(memory)[kBytes / 2] = 1;
    munmap(memory, kBytes);
  }
  close(file);
  return fault;
}

Check anonymous_files() {
  const std::string fault = anonymous_file_fault();
  if (fault.empty()) return {"shared memory", Health::kOk, "anonymous files work", ""};
  return {"shared memory", Health::kFail, fault,
          "lift ulimit -f and ulimit -v, and let the container use memfd_create; or choose the backend gloo"};
}

Check shm_folder(const std::filesystem::path& root) {
  struct statvfs status{};
  if (statvfs((root / "dev/shm").c_str(), &status) != 0) {
    return {"/dev/shm", Health::kWarn, std::strerror(errno), "mount a tmpfs there: MPI and NCCL use it"};
  }
  const std::uint64_t size = std::uint64_t{status.f_blocks} * status.f_frsize;
  const std::uint64_t available = std::uint64_t{status.f_bavail} * status.f_frsize;
  Check check{"/dev/shm", Health::kOk, bytes_text(available) + " free of " + bytes_text(size), ""};
  if (available < kGiB) {
    check.health = Health::kWarn;
    check.advice = "make it larger (docker run --shm-size 8g): MPI and NCCL use it, Tessera itself does not";
  }
  return check;
}

}  // namespace

Checks check_shared_memory(const std::filesystem::path& root) { return {anonymous_files(), shm_folder(root)}; }

}  // namespace tessera::doctor
