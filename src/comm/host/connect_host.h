#pragma once

#include <atomic>
#include <memory>

#include "comm/connector.h"
#include "comm/host/host_segment.h"
#include "comm/host/left_pages.h"

namespace tessera::comm {

/// What the ranks of a world of threads share.
struct ThreadsShared {
  std::mutex mutex;
  struct Waiting {
    std::shared_ptr<std::byte> pages;
    int num_members = 0;
  };
  std::map<std::string, Waiting> control_blocks;  // by name, of groups whose members have not all connected
  std::atomic<int> failed_rank = -1;
  LeftPages left_pages;
};

Connection connect_threads(const ConnectRequest& request, std::shared_ptr<ThreadsShared> shared);

/// `local_ranks` are those of the members, in group order.
Connection connect_shm(const ConnectRequest& request, std::shared_ptr<HostSegment> segment,
                       const std::vector<int>& local_ranks);

/// Connects a group of one rank, which has no peers.
Connection connect_alone(const ConnectRequest& request, const std::string& backend);

}  // namespace tessera::comm
