#include <tessera/comm/group_memory.h>

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <exception>
#include <string>
#include <utility>

#include "comm/group.h"
#include "comm/host/host_group.h"

namespace tessera {
namespace {

using Users = comm::LeftPages::Users;
// Ranks that wait for each other's numbers must not contend for one cache line.
constexpr std::size_t kLine = 64;
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

std::size_t whole_lines(std::size_t num_bytes) { return (num_bytes + kLine - 1) / kLine * kLine; }

/// Returns rank 0's number on all ranks.
std::uint64_t broadcast_by_first(const Communicator& comm, std::uint64_t number) {
  const at::Tensor announced = at::full({1}, static_cast<std::int64_t>(number), at::kLong);
  comm.broadcast(announced, 0);
  return static_cast<std::uint64_t>(announced.item<std::int64_t>());
}

}  // namespace

struct GroupMemory::Held {
  Held(std::shared_ptr<comm::HostGroup> of, std::byte* bytes, std::size_t count, Users& users,
       std::shared_ptr<std::byte> owned)
      : group(std::move(of)), data(bytes), num_bytes(count), use(users, std::move(owned), group->left_pages) {}

  std::shared_ptr<comm::HostGroup> group;
  std::byte* data;
  std::size_t num_bytes;
  comm::PageUse use;
};

std::optional<GroupMemory> GroupMemory::make(const Communicator& comm, std::size_t num_bytes) {
  const std::shared_ptr<comm::HostGroup> group = comm.group_->connection().host_group;
  if (!group) return std::nullopt;
  // The count of users lies behind the bytes, which begin at a page boundary.
  const auto users_of = [num_bytes](std::byte* data) -> Users& {
    return *reinterpret_cast<Users*>(data + whole_lines(num_bytes));
  };
  const std::size_t all_bytes = whole_lines(num_bytes) + sizeof(Users);
  std::shared_ptr<std::byte> owned;
  std::uint64_t address = kNowhere;
  std::exception_ptr fault;
  if (comm.rank() == 0) {
    try {
      group->left_pages->collect();
      owned = group->allocate_pages(all_bytes);
      users_of(owned.get()).store(comm.size(), std::memory_order_release);
      address = group->space.publish(owned.get(), all_bytes).value();
    } catch (...) {
      fault = std::current_exception();  // thrown below, after the broadcast for which the others wait
    }
  }
  address = broadcast_by_first(comm, address);
  if (fault) std::rethrow_exception(fault);
  if (address == kNowhere) {
    throw StorageError("rank " + std::to_string(comm.world_rank_of(0)) + " has no " + std::to_string(all_bytes) +
                       " bytes of memory that all ranks see (rank " + std::to_string(comm.world_rank()) +
                       "); it says why");
  }
  std::byte* const data = group->space.resolve(address);
  return GroupMemory(std::make_shared<Held>(group, data, num_bytes, users_of(data), std::move(owned)));
}

std::byte* GroupMemory::data() const { return held_->data; }
std::size_t GroupMemory::num_bytes() const { return held_->num_bytes; }
std::shared_ptr<void> GroupMemory::hold() const { return held_; }

// ---- Fences -----------------------------------------------------------------------------------------------------

namespace {

comm::FutexWord& word_of(const GroupMemory& memory, int kind, int num_ranks, int rank) {
  const auto line =
      static_cast<std::size_t>(kind) * static_cast<std::size_t>(num_ranks) + static_cast<std::size_t>(rank);
  return *reinterpret_cast<comm::FutexWord*>(memory.data() + line * kLine);
}

}  // namespace

std::optional<Fences> Fences::make(const Communicator& comm, int num_kinds) {
  const auto num_lines = static_cast<std::size_t>(num_kinds) * static_cast<std::size_t>(comm.size());
  auto memory = GroupMemory::make(comm, num_lines * kLine);
  if (!memory) return std::nullopt;
  return Fences(std::move(*memory), comm);
}

void Fences::reach(int kind, std::uint32_t number) const {
  comm::FutexWord& word = word_of(memory_, kind, comm_.size(), comm_.rank());
  word.store(number, std::memory_order_release);
  comm::futex_wake_all(word);
}

void Fences::await_all(int kind, std::uint32_t number, const std::function<std::string()>& what) const {
  const auto deadline = comm::Deadline::after(comm_.timeout());
  for (int rank = 0; rank < comm_.size(); ++rank) {
    comm::FutexWord& word = word_of(memory_, kind, comm_.size(), rank);
    // Compared by their difference, because the numbers wrap around after four billion steps.
    const auto is_there = [&] { return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - number) >= 0; };
    if (is_there()) continue;
    memory_.held_->group->waiter.wait(word, is_there, deadline, [&] {
      return what() + " (rank " + std::to_string(comm_.world_rank()) + " waits for rank " +
             std::to_string(comm_.world_rank_of(rank)) + ")";
    });
  }
}

}  // namespace tessera
