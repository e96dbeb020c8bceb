#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tessera::comm {

/// The memory that all ranks of a host group can reach, and how an address in it is told to a peer. Ranks that are
/// threads of one process reach everything; ranks that are processes reach one shared mapping.
class AddressSpace {
 public:
  static AddressSpace whole_process() { return AddressSpace(0, UINTPTR_MAX); }
  static AddressSpace mapping(std::byte* base, std::size_t num_bytes) {
    return AddressSpace(reinterpret_cast<std::uintptr_t>(base), num_bytes);
  }

  /// What to tell a peer; nothing when peers cannot reach it.
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

}  // namespace tessera::comm
