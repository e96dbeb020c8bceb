#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/sim_device/clock.h"
#include "support/sim_device/span.h"

namespace tessera::testing::sim {

/// What a launch does to a block.
struct BlockAccess {
  Span span;
  bool writes;
  std::size_t stream;
  std::uint64_t tick;
  std::string op;
};

/// A piece of memory that is mapped twice: the host has addresses that it may not always touch, kernels have others.
class Block {
 public:
  enum class Kind { kDevice, kPinned };

  Block(Kind kind, char* for_host, char* for_kernels, std::size_t num_bytes, int device, std::size_t stream);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  bool is_pinned() const { return kind_ == Kind::kPinned; }
  int device() const { return device_; }
  std::size_t stream() const { return stream_; }  ///< on which it was made
  std::size_t num_bytes() const { return num_bytes_; }
  char* for_host() const { return for_host_; }
  char* for_kernels(const void* for_host) const {
    return for_kernels_ + (static_cast<const char*>(for_host) - for_host_);
  }
  bool has(const void* address) const;

  /// Throws Error for an access that nothing puts in order with one that came before: `known` is what the stream knows.
  void add(BlockAccess access, const Clock& known);
  /// An access by another stream than the block's own, which neither `known` nor record_stream puts before its end; ""
  /// for none.
  std::string use_at_end(const Clock& known) const;
  void record(std::size_t stream) { recorded_.insert(stream); }
  const std::set<std::size_t>& recorded() const { return recorded_; }
  /// Of pinned memory: lets the host touch it as far as the launches are over that `known` knows of.
  void protect(const Clock& known);

 private:
  std::string in_words(const BlockAccess& access) const;

  const Kind kind_;
  char* const for_host_;
  char* const for_kernels_;
  const std::size_t num_bytes_;
  const int device_;
  const std::size_t stream_;
  std::vector<BlockAccess> accesses_;
  std::set<std::size_t> recorded_;
  int protection_;
};

std::size_t whole_pages(std::size_t num_bytes);

/// The address space of a device: a half that nobody may touch, and behind it one for kernels. Never used twice.
class AddressSpace {
 public:
  AddressSpace();
  /// For the host; `for_kernels` lies so far behind it. Throws Error when it is used up.
  char* take(std::size_t num_bytes);
  static char* for_kernels(char* for_host);

 private:
  char* begin_;
  std::size_t used_ = 0;
};

}  // namespace tessera::testing::sim
