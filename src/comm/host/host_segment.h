#pragma once

#include <c10/core/Allocator.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/arena.h"
#include "comm/host/left_pages.h"

namespace tessera::comm {

/// The memory that the ranks of one node share: one anonymous file, mapped whole by each, with an arena for every rank.
///
/// Note [Memory that leaves nothing behind]
/// The file is a memfd: it has no name in any folder, so nothing remains when the last process is gone, however it
/// died, and its size does not depend on how large /dev/shm is. Its arenas are as large as the machine's memory but
/// sparse: a page exists from the moment a tensor uses it until that tensor is freed. Pages that other ranks still use
/// when their owner leaves stay until the last of these ranks has gone. Peers open the file through /proc/PID/fd, which
/// the kernel grants to processes of the same user only.
class HostSegment {
 public:
  /// Collective: over the local ranks that call it; the first one makes the segment. Blocks: until it is there.
  /// Throws CommError when the creator cannot be reached.
  static std::shared_ptr<HostSegment> attach(c10d::Store& store, int node, int local_rank, int local_size);
  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  std::byte* base() const { return base_; }
  std::size_t num_bytes() const { return num_bytes_; }
  /// Of this rank.
  Arena& arena() { return *arena_; }
  LeftPages& left_pages() { return left_pages_; }

  /// A sentence about one of these local ranks if its process has ended, else empty.
  std::string loss_among(const std::vector<int>& local_ranks, const std::vector<int>& names) const;

 private:
  HostSegment() = default;
  void map();
  int process_of(int local_rank) const;

  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::size_t num_bytes_ = 0;
  std::size_t arena_bytes_ = 0;
  int local_size_ = 1;
  std::unique_ptr<Arena> arena_;
  LeftPages left_pages_;  // in the arena
};

/// LibTorch's view of a rank's arena. Tensors keep the segment alive.
class ArenaAllocator : public c10::Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<HostSegment> segment) : segment_(std::move(segment)) {}

  c10::DataPtr allocate(std::size_t num_bytes) override;
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

 private:
  std::shared_ptr<HostSegment> segment_;
};

}  // namespace tessera::comm
