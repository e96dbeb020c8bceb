#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/host/control_block.h"
#include "comm/host/left_pages.h"

namespace tessera::comm {

/// The memory that all ranks of a host group can reach, and the form of an address in it that a peer understands. Ranks
/// that are threads of one process reach everything; ranks that are processes reach one shared mapping.
class AddressSpace {
 public:
  static AddressSpace whole_process() { return AddressSpace(0, UINTPTR_MAX); }
  static AddressSpace mapping(std::byte* base, std::size_t num_bytes) {
    return AddressSpace(reinterpret_cast<std::uintptr_t>(base), num_bytes);
  }

  /// The address of `data` to pass to a peer; nothing when peers cannot reach the memory.
  std::optional<std::uint64_t> publish(const void* data, std::size_t num_bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address < base_ || num_bytes > num_bytes_ || address - base_ > num_bytes_ - num_bytes) return std::nullopt;
    return address - base_;
  }
  std::byte* resolve(std::uint64_t published) const { return reinterpret_cast<std::byte*>(base_ + published); }

 private:
  AddressSpace(std::uintptr_t base, std::size_t num_bytes) : base_(base), num_bytes_(num_bytes) {}

  std::uintptr_t base_;
  std::size_t num_bytes_;
};

/// The ranks of one host, as its engine and its transport see them.
struct HostGroup {
  std::string backend;  ///< "shm" or "threads"
  int rank = 0;
  int size = 1;
  AddressSpace space = AddressSpace::whole_process();
  ControlBlock control{nullptr, 1};
  Waiter waiter;
  std::shared_ptr<void> memory;  ///< keeps what `control` and `space` refer to
  /// Zeroed pages of this rank that all members reach. They must not outlive `memory`.
  std::function<std::shared_ptr<std::byte>(std::size_t num_bytes)> allocate_pages = nullptr;
  std::shared_ptr<LeftPages> left_pages = nullptr;
};

}  // namespace tessera::comm
