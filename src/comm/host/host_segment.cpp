#include "comm/host/host_segment.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <random>
#include <sstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

namespace tessera::comm {
namespace {

// A process has 128 TiB of addresses; all arenas of a node together take no more than a quarter of them.
constexpr std::size_t kMaxMapping = std::size_t{32} << 40;

/// The first bytes of the segment.
struct Header {
  std::uint64_t nonce;
  std::atomic<std::int32_t> processes[1];  // in fact one entry for each local rank
};

constexpr std::size_t kHeaderBytes = kHugePage;

/// What the creator publishes to the other ranks.
struct Address {
  int process = 0;
  int fd = -1;
  std::uint64_t nonce = 0;
  std::size_t arena_bytes = 0;
};

std::size_t arena_bytes_for(int local_size) {
  struct sysinfo info{};
  sysinfo(&info);
  const std::size_t memory = static_cast<std::size_t>(info.totalram) * info.mem_unit;
  const std::size_t share = kMaxMapping / static_cast<std::size_t>(local_size);
  return std::min(memory, share) / kHugePage * kHugePage;
}

std::string to_text(const Address& address) {
  std::ostringstream text;
  text << address.process << ' ' << address.fd << ' ' << address.nonce << ' ' << address.arena_bytes;
  return text.str();
}

Address from_text(const std::string& text) {
  Address address;
  std::istringstream(text) >> address.process >> address.fd >> address.nonce >> address.arena_bytes;
  return address;
}

[[noreturn]] void fail(const std::string& what) {
  throw CommError(what + ": " + std::strerror(errno) +
                  ". Shared memory needs the ranks of a node to be processes of one user that see each other in /proc; "
                  "where they do not, set the backend to \"gloo\"");
}

std::uint64_t random_nonce() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

std::shared_ptr<HostSegment> HostSegment::attach(c10d::Store& store, int node, int local_rank, int local_size) {
  const std::string key = "host/" + std::to_string(node);
  std::shared_ptr<HostSegment> segment(new HostSegment());
  segment->local_size_ = local_size;
  Address address;
  const bool creator = store.add(key + "/claim", 1) == 1;
  if (creator) {
    address = {getpid(), -1, random_nonce(), arena_bytes_for(local_size)};
    segment->fd_ = memfd_create("tessera", MFD_CLOEXEC);
    if (segment->fd_ < 0) fail("no anonymous shared memory");
    address.fd = segment->fd_;
  } else {
    address = from_text(store.get_to_str(key));
    const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.fd);
    segment->fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (segment->fd_ < 0) fail("the shared memory of node " + std::to_string(node) + " cannot be opened at " + path);
  }
  segment->arena_bytes_ = address.arena_bytes;
  segment->num_bytes_ = kHeaderBytes + address.arena_bytes * static_cast<std::size_t>(local_size);
  if (creator && ftruncate(segment->fd_, static_cast<off_t>(segment->num_bytes_)) != 0) {
    fail("shared memory of " + std::to_string(segment->num_bytes_) + " bytes cannot be laid out");
  }
  segment->map();
  auto* header = reinterpret_cast<Header*>(segment->base_);
  if (creator) {
    header->nonce = address.nonce;
    store.set(key, to_text(address));
  } else if (header->nonce != address.nonce) {
    errno = ESTALE;
    fail("what lies at the announced place is not this job's shared memory");
  }
  header->processes[local_rank].store(getpid(), std::memory_order_release);
  const std::size_t begin = kHeaderBytes + address.arena_bytes * static_cast<std::size_t>(local_rank);
  segment->arena_ = std::make_unique<Arena>(segment->fd_, segment->base_ + begin, begin, address.arena_bytes);
  return segment;
}

void HostSegment::map() {
  void* memory = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (memory == MAP_FAILED) {
    fail("shared memory of " + std::to_string(num_bytes_) + " bytes cannot be mapped (is `ulimit -v` set?)");
  }
  base_ = static_cast<std::byte*>(memory);
}

HostSegment::~HostSegment() {
  left_pages_.collect();
  // The remaining ranks still read and write memory that this rank allocated for all, such as their shards of a model.
  if (arena_) arena_->leave_pages();
  left_pages_.clear();
  arena_.reset();
  if (base_ != nullptr) munmap(base_, num_bytes_);
  if (fd_ >= 0) close(fd_);
}

int HostSegment::process_of(int local_rank) const {
  return reinterpret_cast<Header*>(base_)->processes[local_rank].load(std::memory_order_acquire);
}

std::string HostSegment::loss_among(const std::vector<int>& local_ranks, const std::vector<int>& names) const {
  for (std::size_t i = 0; i < local_ranks.size(); ++i) {
    const int process = process_of(local_ranks[i]);
    if (process == 0) continue;  // not there yet
    const int handle = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    bool gone = handle < 0 && errno == ESRCH;
    if (handle >= 0) {
      pollfd ended{handle, POLLIN, 0};
      gone = poll(&ended, 1, 0) == 1;
      close(handle);
    }
    if (gone) return "rank " + std::to_string(names[i]) + " (process " + std::to_string(process) + ") has ended";
  }
  return "";
}

namespace {

/// The context of the deleter, which gets only one pointer.
struct Owned {
  std::shared_ptr<HostSegment> segment;
  std::byte* memory;
};

void free_owned(void* context) {
  std::unique_ptr<Owned> owned(static_cast<Owned*>(context));
  owned->segment->arena().free(owned->memory);
}

}  // namespace

c10::DataPtr ArenaAllocator::allocate(std::size_t num_bytes) {
  auto owned = std::make_unique<Owned>(Owned{segment_, segment_->arena().allocate(num_bytes)});
  std::byte* memory = owned->memory;
  return {memory, owned.release(), &free_owned, c10::Device(c10::DeviceType::CPU)};
}

void ArenaAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  std::memcpy(destination, source, num_bytes);
}

}  // namespace tessera::comm
