#include "comm/host/connect_host.h"

#include <tessera/core/error.h>

#include <sys/mman.h>

#include <utility>

#include "comm/engine/engine_backend.h"
#include "comm/host/host_exchange.h"
#include "comm/host/host_segment.h"
#include "comm/host/host_transport.h"

namespace tessera::comm {
namespace {

/// Zeroed pages of this process that nothing else uses.
std::shared_ptr<std::byte> private_pages(std::size_t num_bytes) {
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw StorageError("no " + std::to_string(num_bytes) + " bytes of memory for a group");
  return {static_cast<std::byte*>(memory), [num_bytes](std::byte* pages) { munmap(pages, num_bytes); }};
}

/// The pages do not keep the segment alive, because the segment itself holds those that were left (see LeftPages).
std::shared_ptr<std::byte> arena_pages(Arena& arena, std::size_t num_bytes) {
  return {arena.allocate(num_bytes), [&arena](std::byte* pages) { arena.free(pages); }};
}

Connection connect(const ConnectRequest& request, std::shared_ptr<HostGroup> group, CommAllocator allocator) {
  Connection connection;
  connection.host_group = group;
  auto transport = std::make_shared<HostTransport>(group, group->allocate_pages);
  connection.transport = transport;
  connection.backend =
      c10::make_intrusive<EngineBackend>(request.rank, request.size, std::make_shared<HostEngine>(group), transport,
                                         request.timeout, std::move(allocator));
  connection.is_zero_copy = [group](const void* data, std::size_t num_bytes) {
    return group->space.publish(data, num_bytes).has_value();
  };
  return connection;
}

std::shared_ptr<HostGroup> group_of(const ConnectRequest& request, std::string backend, AddressSpace space,
                                    std::byte* control, Waiter waiter, std::shared_ptr<void> memory) {
  return std::make_shared<HostGroup>(HostGroup{std::move(backend), request.rank, request.size, space,
                                               ControlBlock(control, request.size), std::move(waiter),
                                               std::move(memory)});
}

}  // namespace

Connection connect_threads(const ConnectRequest& request, std::shared_ptr<ThreadsShared> shared) {
  std::shared_ptr<std::byte> control;
  {
    const std::lock_guard lock(shared->mutex);
    auto& waiting = shared->control_blocks[request.group];
    if (!waiting.pages) waiting.pages = private_pages(ControlBlock::num_bytes(request.size));
    control = waiting.pages;
    // The last member: from now on the block lives as long as the group's ranks hold it.
    if (++waiting.num_members == request.size) shared->control_blocks.erase(request.group);
  }
  Waiter waiter(request.num_ranks_on_host, [shared]() -> std::string {
    const int failed = shared->failed_rank.load();
    return failed < 0 ? "" : "rank " + std::to_string(failed) + " has failed";
  });
  auto group = group_of(request, "threads", AddressSpace::whole_process(), control.get(), std::move(waiter), control);
  group->allocate_pages = private_pages;
  group->left_pages = {shared, &shared->left_pages};
  return connect(request, std::move(group), nullptr);
}

Connection connect_alone(const ConnectRequest& request, const std::string& backend) {
  auto control = private_pages(ControlBlock::num_bytes(1));
  auto group = group_of(request, backend, AddressSpace::whole_process(), control.get(), Waiter(1, nullptr), control);
  group->allocate_pages = private_pages;
  group->left_pages = std::make_shared<LeftPages>();
  return connect(request, std::move(group), nullptr);
}

Connection connect_shm(const ConnectRequest& request, std::shared_ptr<HostSegment> segment,
                       const std::vector<int>& local_ranks) {
  const std::shared_ptr<LeftPages> left_pages(segment, &segment->left_pages());
  // The first member lays out the control block in its own arena, whose fresh pages are zero. A slower member may still
  // read the last barrier after the first has released the group, so the pages are freed after the last member's use.
  std::shared_ptr<std::byte> owned;
  std::byte* control = nullptr;
  if (request.rank == 0) {
    left_pages->collect();
    owned = arena_pages(segment->arena(), ControlBlock::num_bytes(request.size));
    control = owned.get();
    ControlBlock(control, request.size).users().store(request.size, std::memory_order_release);
    request.store->set("control", std::to_string(control - segment->base()));
  } else {
    control = segment->base() + std::stoull(request.store->get_to_str("control"));
  }
  auto use = std::make_shared<PageUse>(ControlBlock(control, request.size).users(), std::move(owned), left_pages);
  Waiter waiter(request.num_ranks_on_host, [segment, local_ranks, names = request.world_ranks] {
    return segment->loss_among(local_ranks, names);
  });
  auto group = group_of(request, "shm", AddressSpace::mapping(segment->base(), segment->num_bytes()), control,
                        std::move(waiter), std::move(use));
  group->allocate_pages = [&arena = segment->arena()](std::size_t num_bytes) { return arena_pages(arena, num_bytes); };
  group->left_pages = left_pages;
  return connect(request, std::move(group), std::make_shared<ArenaAllocator>(segment));
}

}  // namespace tessera::comm
