#include <tessera/flight/process_state.h>

#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>

namespace tessera::flight {

std::string process_space() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, PATH_MAX> space{};
  if (readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) return host.data();
  return std::string(host.data()) + " " + space.data();
}

ProcessState state_of_process(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  // "12 (name, which may hold anything) S ..."
  const auto name_end = text.rfind(") ");
  if (name_end == std::string::npos) return {RankCondition::kDead, "its process has ended"};
  switch (text[name_end + 2]) {
    case 'Z':
    case 'X':
      return {RankCondition::kDead, "its process has ended"};
    case 'T':
    case 't':
      return {RankCondition::kStopped, "process " + std::to_string(process) + " was stopped by a signal or a debugger"};
    case 'D':
      return {RankCondition::kSilent, "process " + std::to_string(process) + " waits for a disk or the network"};
    default:
      return {RankCondition::kSilent, "process " + std::to_string(process) + " is alive but does not answer"};
  }
}

}  // namespace tessera::flight
