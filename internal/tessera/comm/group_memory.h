#pragma once

#include <tessera/comm/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// Memory that all ranks of a group share. A handle; the pages return to the system when no rank holds one.
/// Thread-safety: access to the bytes is not synchronised; see Fences.
class GroupMemory {
 public:
  /// Zeroed. Nothing where the ranks share no memory, as on Gloo. Collective: over `comm`.
  static std::optional<GroupMemory> make(const Communicator& comm, std::size_t num_bytes);

  std::byte* data() const;
  std::size_t num_bytes() const;
  /// Keeps the memory as long as it is held.
  std::shared_ptr<void> hold() const;

 private:
  friend class Fences;
  struct Held;
  explicit GroupMemory(std::shared_ptr<Held> held) : held_(std::move(held)) {}

  std::shared_ptr<Held> held_;
};

/// Numbers that only grow, `num_kinds` for each rank of a group. A rank raises its own number and waits for those of
/// all. A rank that has waited for a number sees what the others wrote to the group's memory before they reached it.
/// Thread-safety: one thread at a time for each kind.
class Fences {
 public:
  /// All at 0. Nothing where the ranks share no memory. Collective: over `comm`.
  static std::optional<Fences> make(const Communicator& comm, int num_kinds);

  void reach(int kind, std::uint32_t number) const;
  /// Blocks: until every rank has reached `number`, or one beyond. Throws CommError when a rank is lost, and after the
  /// group's timeout. `what()` describes for the message what was waited for; the ranks are added to it.
  void await_all(int kind, std::uint32_t number, const std::function<std::string()>& what) const;

 private:
  Fences(GroupMemory memory, Communicator comm) : memory_(std::move(memory)), comm_(std::move(comm)) {}

  GroupMemory memory_;
  Communicator comm_;
};

}  // namespace tessera
