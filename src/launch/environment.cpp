#include "launch/environment.h"

extern char** environ;  // NOLINT: POSIX's own name

namespace tessera::launch {

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

std::vector<std::string> entries_of(const Environment& environment) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  return entries;
}

void set_place(Environment& environment, const RankPlace& place) {
  environment["RANK"] = std::to_string(place.rank);
  environment["WORLD_SIZE"] = std::to_string(place.world_size);
  environment["LOCAL_RANK"] = std::to_string(place.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(place.local_world_size);
  environment["NODE_RANK"] = std::to_string(place.node_rank);
  environment["MASTER_ADDR"] = place.master_address;
  environment["MASTER_PORT"] = std::to_string(place.master_port);
}

}  // namespace tessera::launch
