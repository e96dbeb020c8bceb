#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "comm/host/address_space.h"
#include "comm/host/control_block.h"
#include "comm/host/left_pages.h"
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
  /// Zeroed pages of this rank that all members reach. They must not outlive `memory`.
  std::function<std::shared_ptr<std::byte>(std::size_t num_bytes)> allocate_pages = nullptr;
  std::shared_ptr<LeftPages> left_pages = nullptr;
};

}  // namespace tessera::comm
