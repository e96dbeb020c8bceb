// Cores, NUMA nodes, memory, huge pages and GPUs.
#include <tessera/launch/machine.h>

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tessera/doctor/checks.h"
#include "tessera/doctor/system_file.h"

namespace tessera::doctor {
namespace {

Check cores() {
  const auto allowed = static_cast<long>(launch::allowed_cpus().size());
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  Check check{"cores", Health::kOk,
              std::to_string(launch::num_allowed_cores()) + " cores, " + std::to_string(allowed) + " processors", ""};
  if (allowed < online) {
    check.found +=
        " of the machine's " + std::to_string(online) + "; the others are not allowed here (taskset, cpuset)";
  }
  return check;
}

Check numa_nodes(const std::filesystem::path& root) {
  const int num_nodes = launch::num_numa_nodes(root / "sys/devices/system/node");
  return {"NUMA nodes", Health::kOk,
          std::to_string(num_nodes) + (num_nodes > 1 ? "; tessera run keeps each rank on one" : ""), ""};
}

/// In bytes; 0 when /proc/meminfo does not have it.
std::uint64_t memory_field(const std::filesystem::path& root, const std::string& name) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t kib = 0;
    words >> key >> kib;
    if (key == name + ":") return kib * 1024;
  }
  return 0;
}

Check memory(const std::filesystem::path& root) {
  const std::uint64_t total = memory_field(root, "MemTotal");
  const std::uint64_t available = memory_field(root, "MemAvailable");
  Check check{"memory", Health::kOk, bytes_text(available) + " free of " + bytes_text(total), ""};
  if (available < kGiB || available < total / 10) {
    check.health = Health::kWarn;
    check.advice = "end what uses it: the kernel kills ranks when memory runs out";
  }
  return check;
}

Check huge_pages(const std::filesystem::path& root) {
  const std::filesystem::path folder = root / "sys/kernel/mm/transparent_hugepage";
  const std::string modes = first_line(folder / "enabled");
  const auto begin = modes.find('[');
  const auto end = modes.find(']');
  if (begin == std::string::npos || end == std::string::npos) return {"huge pages", Health::kOk, "not supported", ""};
  Check check{"huge pages", Health::kOk, modes.substr(begin + 1, end - begin - 1), ""};
  if (check.found == "never") {
    check.health = Health::kWarn;
    check.advice = "as root: echo madvise > /" + (folder / "enabled").lexically_relative(root).string() +
                   "; large tensors then need fewer page faults";
  }
  return check;
}

int num_device_files(const std::filesystem::path& root) {
  std::error_code fault;
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "dev", fault)) {
    const std::string name = entry.path().filename();
    found +=
        name.starts_with("nvidia") && name.find_first_not_of("0123456789", 6) == std::string::npos && name.size() > 6
            ? 1
            : 0;
  }
  return found;
}

Check gpus(const std::filesystem::path& root) {
  const int driven = launch::num_gpus(nullptr, root / "proc/driver/nvidia/gpus");
  const int devices = num_device_files(root);
  if (driven == 0 && devices == 0) return {"GPUs", Health::kOk, "none", ""};
  Check check{"GPUs", Health::kOk, std::to_string(driven), ""};
  if (driven != devices) {
    check.health = Health::kWarn;
    check.found += " known to the driver, and " + std::to_string(devices) + " device files /dev/nvidiaN";
    check.advice = "run nvidia-smi; in a container pass all GPUs on (--gpus all)";
  }
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    check.found += ", CUDA_VISIBLE_DEVICES=" + std::string(visible);
  }
  return check;
}

}  // namespace

Checks check_compute(const std::filesystem::path& root) {
  return {cores(), numa_nodes(root), memory(root), huge_pages(root), gpus(root)};
}

}  // namespace tessera::doctor
