#include <tessera/launch/machine.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/error_message.h"
#include "support/temporary_folder.h"
#include "tessera/doctor/checks.h"
#include "tessera/doctor/print.h"

namespace tessera::doctor {
namespace {

using testing::expect_parts;

/// A machine whose /proc, /sys and /dev are what a test says.
class FakeMachine {
 public:
  void put(const std::string& path, const std::string& text) const {
    const auto place = root() / path;
    std::filesystem::create_directories(place.parent_path());
    std::ofstream(place) << text;
  }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

Check find(const Checks& checks, const std::string& name) {
  const auto found = std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
  if (found != checks.end()) return *found;
  ADD_FAILURE() << "no check is called " << name;
  return {};
}

void expect_warning(const Check& check, std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(check.health, Health::kWarn) << check.name << ": " << check.found;
  EXPECT_NE(check.advice, "");
  expect_parts(check.found + " | " + check.advice, parts);
}

TEST(DoctorChecks, KnowMemoryThatRunsOut) {
  const FakeMachine machine;
  machine.put("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
  const Check enough = find(check_compute(machine.root()), "memory");
  EXPECT_EQ(enough.health, Health::kOk);
  EXPECT_EQ(enough.found, "8.0 GiB free of 16.0 GiB");
  machine.put("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 524288 kB\n");
  expect_warning(find(check_compute(machine.root()), "memory"), {"512 MiB free of 16.0 GiB", "kills"});
}

TEST(DoctorChecks, KnowHugePagesThatAreOff) {
  const FakeMachine machine;
  EXPECT_EQ(find(check_compute(machine.root()), "huge pages").found, "not supported");
  machine.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(find(check_compute(machine.root()), "huge pages").found, "madvise");
  machine.put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  expect_warning(find(check_compute(machine.root()), "huge pages"), {"never", "/sys/kernel/mm/transparent_hugepage"});
}

TEST(DoctorChecks, CompareTheDriversGpusWithTheDeviceFiles) {
  const FakeMachine machine;
  EXPECT_EQ(find(check_compute(machine.root()), "GPUs").found, "none");
  machine.put("proc/driver/nvidia/gpus/0000:01:00.0/information", "");
  machine.put("proc/driver/nvidia/gpus/0000:02:00.0/information", "");
  machine.put("dev/nvidia0", "");
  machine.put("dev/nvidiactl", "");
  expect_warning(find(check_compute(machine.root()), "GPUs"), {"2 known to the driver, and 1 device", "nvidia-smi"});
  machine.put("dev/nvidia1", "");
  EXPECT_EQ(find(check_compute(machine.root()), "GPUs").health, Health::kOk);
}

TEST(DoctorChecks, ReadTheLimitsOfBothVersionsOfControlGroups) {
  const FakeMachine second;
  second.put("proc/self/cgroup", "0::/job/step\n");
  second.put("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  second.put("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  second.put("sys/fs/cgroup/job/memory.max", "536870912\n");
  const FakeMachine first;
  first.put("proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n");
  first.put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  first.put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  first.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  for (const FakeMachine* machine : {&first, &second}) {
    const Checks checks = check_control_groups(machine->root());
    expect_warning(find(checks, "CPU quota"), {"0.5 cores", "OMP_NUM_THREADS be 1 at most"});
    expect_warning(find(checks, "memory limit"), {"512 MiB"});
  }
}

TEST(DoctorChecks, FindNoLimitWhereThereIsNone) {
  const FakeMachine machine;
  machine.put("proc/self/cgroup", "0::/\n4:memory:/\n");
  machine.put("sys/fs/cgroup/cpu.max", "max 100000\n");
  machine.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  for (const Check& check : check_control_groups(machine.root())) {
    EXPECT_EQ(check.found, "none");
    EXPECT_EQ(check.health, Health::kOk);
  }
}

TEST(DoctorChecks, WarnOfFewOpenFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto health_with = [&](rlim_t number) {
    rlimit limit = before;
    limit.rlim_cur = number;
    setrlimit(RLIMIT_NOFILE, &limit);
    const Check check = find(check_limits("/"), "open files");
    setrlimit(RLIMIT_NOFILE, &before);
    return check.health;
  };
  EXPECT_EQ(health_with(100), Health::kFail);
  EXPECT_EQ(health_with(1024), Health::kWarn);
  EXPECT_EQ(health_with(4096), Health::kOk);
}

TEST(DoctorChecks, WarnOfLockedMemoryOnlyWhereACardNeedsIt) {
  const FakeMachine machine;
  EXPECT_EQ(find(check_limits(machine.root()), "locked memory").health, Health::kOk);
  machine.put("dev/infiniband/uverbs0", "");
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  EXPECT_EQ(find(check_limits(machine.root()), "locked memory").health,
            limit.rlim_cur == RLIM_INFINITY ? Health::kOk : Health::kWarn);
}

TEST(DoctorChecks, WarnOfAMissingShmFolder) {
  const FakeMachine machine;
  expect_warning(find(check_shared_memory(machine.root()), "/dev/shm"), {"No such file", "tmpfs"});
  EXPECT_EQ(find(check_shared_memory("/"), "shared memory").health, Health::kOk);
}

TEST(DoctorChecks, FailWhenNoSharedMemoryCanBeMade) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = std::uint64_t{1} << 34;
  setrlimit(RLIMIT_AS, &small);
  const Check check = find(check_shared_memory("/"), "shared memory");
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(check.health, Health::kFail);
  expect_parts(check.found + check.advice, {"mmap", "ulimit -v"});
}

TEST(DoctorChecks, KnowDebuggersThatAreLockedOut) {
  const FakeMachine machine;
  EXPECT_EQ(find(check_process_access(machine.root()), "debuggers").health, Health::kOk);
  machine.put("proc/sys/kernel/yama/ptrace_scope", "3\n");
  expect_warning(find(check_process_access(machine.root()), "debuggers"), {"ptrace_scope 3"});
  EXPECT_EQ(find(check_process_access("/"), "/proc/PID/fd").health, Health::kOk);
}

TEST(DoctorChecks, SeeTheLoopback) { EXPECT_EQ(find(check_network(), "loopback").health, Health::kOk); }

TEST(DoctorPrint, IsALineEachAndASum) {
  const Checks checks = {{"one", Health::kOk, "fine", ""}, {"two", Health::kFail, "bad", "mend it"}};
  EXPECT_EQ(to_text(checks),
            "ok    one            fine\n"
            "fail  two            bad; do: mend it\n"
            "This machine is not ready; 1 check fails.\n");
  EXPECT_FALSE(is_ready(checks));
  const auto json = nlohmann::json::parse(to_json(checks));
  EXPECT_EQ(json.at("ready"), false);
  EXPECT_EQ(json.at("checks").at(1).at("status"), "fail");
  EXPECT_EQ(json.at("checks").at(1).at("do"), "mend it");
}

}  // namespace
}  // namespace tessera::doctor
