#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

using Environment = std::map<std::string, std::string>;

/// That of this process.
Environment current_environment();

/// As NAME=VALUE, for exec.
std::vector<std::string> entries_of(const Environment& environment);

/// Where a rank stands in its job, and where it meets the others.
struct RankPlace {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
};

/// The variables by which every launcher tells a rank its place.
void set_place(Environment& environment, const RankPlace& place);

}  // namespace tessera::launch
