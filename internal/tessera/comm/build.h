#pragma once

#include <string>

namespace tessera {

/// The backends that were compiled in, besides those that always are.
struct CommBuild {
  bool mpi = false;
  bool nccl = false;
  std::string mpi_version;  ///< the library's own words, or why there is none
};

CommBuild comm_build();

}  // namespace tessera
