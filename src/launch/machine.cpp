#include <tessera/launch/machine.h>

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fstream>
#include <functional>
#include <set>

namespace tessera::launch {
namespace {

int count(const std::filesystem::path& folder, const std::function<bool(const std::filesystem::path&)>& is_one) {
  std::error_code fault;
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, fault)) found += is_one(entry.path()) ? 1 : 0;
  return found;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> allowed_cpus() {
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  // The kernel refuses a mask that is too small for the machine.
  for (std::size_t num_words = 16; num_words <= 4096; num_words *= 2) {
    std::vector<unsigned long> mask(num_words);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, num_words * sizeof(unsigned long), set) != 0) continue;
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < num_words * kBits; ++cpu) {
      if ((mask[cpu / kBits] >> (cpu % kBits) & 1U) != 0) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return {0};
}

int num_allowed_cores() {
  std::set<std::string> cores;
  for (const int cpu : allowed_cpus()) {
    const std::string number = std::to_string(cpu);
    const std::string siblings = first_line("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? number : siblings);
  }
  return static_cast<int>(cores.size());
}

int num_gpus(const char* visible, const std::filesystem::path& driver_folder) {
  const int present = count(driver_folder, [](const auto&) { return true; });
  if (visible == nullptr || present == 0) return present;
  const std::string list = visible;
  // CUDA's own rule: an empty list, or one that begins with -1, hides all.
  if (list.empty() || list.starts_with("-1")) return 0;
  return std::min<int>(present, 1 + static_cast<int>(std::count(list.begin(), list.end(), ',')));
}

int num_numa_nodes(const std::filesystem::path& folder) {
  return count(folder, [](const std::filesystem::path& path) {
    const std::string name = path.filename();
    const bool is_node =
        name.starts_with("node") && name.size() > 4 && name.find_first_not_of("0123456789", 4) == std::string::npos;
    return is_node && !first_line(path / "cpulist").empty();
  });
}

}  // namespace tessera::launch
