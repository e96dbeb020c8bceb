// The part of the machine that a container or a batch system grants. Versions 1 and 2 of control groups differ in every
// file.
#include <tessera/launch/machine.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "tessera/doctor/checks.h"
#include "tessera/doctor/system_file.h"

namespace tessera::doctor {
namespace {

/// Nothing for "max", -1 and files that do not exist.
std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || value < 0) return std::nullopt;
  return value;
}

/// The folders that limit this process, from its own upwards. `controller` is empty for version 2.
std::vector<std::filesystem::path> folders_of(const std::filesystem::path& root, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  std::filesystem::path own;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    std::getline(std::getline(std::getline(fields, number, ':'), controllers, ':'), path);
    if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) own = path;
  }
  const std::filesystem::path top = root / "sys/fs/cgroup" / controller;
  std::vector<std::filesystem::path> folders;
  for (auto path = own.relative_path(); !path.empty(); path = path.parent_path()) folders.push_back(top / path);
  folders.push_back(top);
  return folders;
}

/// The lowest limit on the way up.
template <class Read>
std::optional<double> lowest(const std::vector<std::filesystem::path>& folders, Read read) {
  std::optional<double> found;
  for (const auto& folder : folders) {
    const std::optional<double> limit = read(folder);
    if (limit && (!found || *limit < *found)) found = limit;
  }
  return found;
}

std::optional<double> cpu_quota(const std::filesystem::path& folder) {
  std::istringstream words(first_line(folder / "cpu.max"));
  std::string quota;
  std::string period;
  if (!(words >> quota >> period)) {
    quota = first_line(folder / "cpu.cfs_quota_us");
    period = first_line(folder / "cpu.cfs_period_us");
  }
  const auto used = number_in(quota);
  const auto of = number_in(period);
  return used && of && *of > 0 ? std::optional(*used / *of) : std::nullopt;
}

std::optional<double> memory_limit(const std::filesystem::path& folder) {
  const auto limit = number_in(first_line(folder / "memory.max"));
  const auto older = limit ? limit : number_in(first_line(folder / "memory.limit_in_bytes"));
  // Version 1 writes the largest number there is for no limit.
  constexpr double kNone = 1e18;
  return older && *older < kNone ? older : std::nullopt;
}

std::optional<double> lowest_of_both(const std::filesystem::path& root, const std::string& controller,
                                     std::optional<double> (*read)(const std::filesystem::path&)) {
  auto folders = folders_of(root, "");
  const auto older = folders_of(root, controller);
  folders.insert(folders.end(), older.begin(), older.end());
  return lowest(folders, read);
}

std::string cores_text(double cores) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g cores", cores);
  return text;
}

}  // namespace

Checks check_control_groups(const std::filesystem::path& root) {
  Check cpu{"CPU quota", Health::kOk, "none", ""};
  const auto quota = lowest_of_both(root, "cpu", cpu_quota);
  if (quota) cpu.found = cores_text(*quota);
  if (quota && *quota < launch::num_allowed_cores()) {
    const int usable = std::max(1, static_cast<int>(std::floor(*quota)));
    cpu.health = Health::kWarn;
    cpu.found += ", fewer than the " + std::to_string(launch::num_allowed_cores()) + " that threads are started for";
    cpu.advice = "let ranks x OMP_NUM_THREADS be " + std::to_string(usable) +
                 " at most, or raise the quota: beyond it everything stands still for a part of the time";
  }
  Check memory{"memory limit", Health::kOk, "none", ""};
  if (const auto limit = lowest_of_both(root, "memory", memory_limit)) {
    memory.found = bytes_text(static_cast<std::uint64_t>(*limit)) + "; the kernel kills ranks beyond it";
    if (*limit < static_cast<double>(kGiB)) {
      memory.health = Health::kWarn;
      memory.advice = "raise it (docker run --memory, or the batch system's): LibTorch alone takes half a GiB";
    }
  }
  return {cpu, memory};
}

}  // namespace tessera::doctor
