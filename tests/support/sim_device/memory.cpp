#include "support/sim_device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "support/sim_device/sim_device.h"

namespace tessera::testing::sim {
namespace {

constexpr std::size_t kSpaceBytes = std::size_t{1} << 40;
constexpr std::size_t kPage = 4096;
constexpr int kAll = PROT_READ | PROT_WRITE;

}  // namespace

std::size_t whole_pages(std::size_t num_bytes) { return (num_bytes + kPage - 1) / kPage * kPage; }

Block::Block(Kind kind, char* for_host, char* for_kernels, std::size_t num_bytes, int device, std::size_t stream)
    : kind_(kind),
      for_host_(for_host),
      for_kernels_(for_kernels),
      num_bytes_(num_bytes),
      device_(device),
      stream_(stream),
      protection_(kind == Kind::kPinned ? kAll : PROT_NONE) {}

Block::~Block() {
  if (is_pinned()) {
    munmap(for_host_, whole_pages(num_bytes_));
    munmap(for_kernels_, whole_pages(num_bytes_));
  } else {
    madvise(for_kernels_, whole_pages(num_bytes_), MADV_DONTNEED);
  }
}

bool Block::has(const void* address) const {
  const auto* const byte = static_cast<const char*>(address);
  return for_host_ <= byte && byte < for_host_ + std::max<std::size_t>(num_bytes_, 1);
}

std::string Block::in_words(const BlockAccess& access) const {
  return access.op + (access.writes ? " writes" : " reads") + " bytes [" +
         std::to_string(access.span.begin() - for_host_) + ", " + std::to_string(access.span.end() - for_host_) +
         ") on stream " + std::to_string(access.stream);
}

void Block::add(BlockAccess access, const Clock& known) {
  for (const BlockAccess& before : accesses_) {
    if (before.stream == access.stream || known.knows(before.stream, before.tick)) continue;
    if (!(before.writes || access.writes) || !before.span.touches(access.span)) continue;
    throw Error("data race in a block of " + std::to_string(num_bytes_) + " bytes: " + in_words(access) +
                ", and nothing orders it after " + in_words(before));
  }
  // What follows this one need not look at those that it follows itself.
  std::erase_if(accesses_, [&](const BlockAccess& before) {
    const bool follows = before.stream == access.stream || known.knows(before.stream, before.tick);
    const bool replaces = access.writes || (!before.writes && before.stream == access.stream);
    return follows && replaces && (access.span.covers(before.span) || access.span == before.span);
  });
  accesses_.push_back(std::move(access));
}

std::string Block::use_at_end(const Clock& known) const {
  for (const BlockAccess& one : accesses_) {
    if (one.stream == stream_ || recorded_.contains(one.stream) || known.knows(one.stream, one.tick)) continue;
    return "a block of " + std::to_string(num_bytes_) + " bytes of stream " + std::to_string(stream_) +
           " is freed, and nothing orders that after " + in_words(one) + ": record_stream() or a wait is missing";
  }
  return "";
}

void Block::protect(const Clock& known) {
  int allowed = kAll;
  for (const BlockAccess& one : accesses_) {
    if (!known.knows(one.stream, one.tick)) allowed = one.writes ? PROT_NONE : allowed & PROT_READ;
  }
  if (allowed != protection_) mprotect(for_host_, whole_pages(num_bytes_), allowed);
  protection_ = allowed;
}

AddressSpace::AddressSpace()
    : begin_(static_cast<char*>(
          mmap(nullptr, 2 * kSpaceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (begin_ == MAP_FAILED || mprotect(for_kernels(begin_), kSpaceBytes, kAll) != 0) {
    throw Error("no address space for a simulated device");
  }
}

char* AddressSpace::for_kernels(char* for_host) { return for_host + kSpaceBytes; }

char* AddressSpace::take(std::size_t num_bytes) {
  char* const begin = begin_ + used_;
  used_ += whole_pages(num_bytes);
  if (used_ > kSpaceBytes) throw Error("the address space of a simulated device is used up");
  return begin;
}

}  // namespace tessera::testing::sim
