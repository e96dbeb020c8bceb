#pragma once

#include <memory>
#include <string>

#include "comm/host/address_space.h"
#include "comm/host/control_block.h"
#include "comm/host/patience.h"

namespace tessera::comm {

/// The ranks of one host, as its engine and its transport see them.
struct HostGroup {
  std::string backend;  ///< "shm" or "threads"
  int rank = 0;
  int size = 1;
  AddressSpace space = AddressSpace::whole_process();
  ControlBlock control{nullptr, 1};
  Patience patience;
  std::shared_ptr<void> memory;  ///< keeps what `control` and `space` refer to
};

}  // namespace tessera::comm
