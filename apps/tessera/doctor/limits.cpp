// The resource limits of a process.
#include <sys/resource.h>

#include "tessera/doctor/checks.h"
#include "tessera/doctor/system_file.h"

namespace tessera::doctor {
namespace {

std::string number_text(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit); }

rlimit limit_of(int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  return limit;
}

Check open_files() {
  constexpr rlim_t kNeeded = 256;
  constexpr rlim_t kEnough = 4096;
  const rlimit limit = limit_of(RLIMIT_NOFILE);
  Check check{"open files", Health::kOk, number_text(limit.rlim_cur), ""};
  if (limit.rlim_cur >= kEnough) return check;
  check.health = limit.rlim_cur < kNeeded ? Health::kFail : Health::kWarn;
  check.advice = "ulimit -n " + std::to_string(limit.rlim_max < kEnough ? kEnough : limit.rlim_max) +
                 (limit.rlim_max < kEnough ? ", which takes root (limits.conf)" : "") +
                 ": the launcher and Gloo need several for each rank";
  return check;
}

Check processes() {
  constexpr rlim_t kEnough = 4096;
  const rlim_t limit = limit_of(RLIMIT_NPROC).rlim_cur;
  Check check{"processes", Health::kOk, number_text(limit), ""};
  if (limit >= kEnough) return check;
  check.health = Health::kWarn;
  check.advice = "ulimit -u " + std::to_string(kEnough) + ": threads count too";
  return check;
}

Check locked_memory(const std::filesystem::path& root) {
  const rlim_t limit = limit_of(RLIMIT_MEMLOCK).rlim_cur;
  Check check{"locked memory", Health::kOk, limit == RLIM_INFINITY ? "unlimited" : bytes_text(limit), ""};
  // Only network cards that read memory themselves have to lock it.
  if (limit == RLIM_INFINITY || !std::filesystem::exists(root / "dev/infiniband")) return check;
  check.health = Health::kWarn;
  check.advice = "ulimit -l unlimited: the InfiniBand card of this machine locks what it sends";
  return check;
}

Check core_files() {
  const rlim_t limit = limit_of(RLIMIT_CORE).rlim_cur;
  return {"core files", Health::kOk,
          limit == 0 ? "off; ulimit -c unlimited lets a crash leave one"
                     : (limit == RLIM_INFINITY ? "unlimited" : bytes_text(limit)),
          ""};
}

}  // namespace

Checks check_limits(const std::filesystem::path& root) {
  return {open_files(), processes(), locked_memory(root), core_files()};
}

}  // namespace tessera::doctor
