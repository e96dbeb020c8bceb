#pragma once

#include <tessera/comm/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// Memory that every rank of a group sees: what one writes, the others find there. A handle; the pages return to the
/// system when no rank holds one.
/// Thread-safety: of the bytes none; see Milestones.
class CommonMemory {
 public:
  /// Zeroed. Nothing where the ranks share no memory, as on Gloo. Collective: over `comm`.
  static std::optional<CommonMemory> make(const Communicator& comm, std::size_t num_bytes);

  std::byte* data() const;
  std::size_t num_bytes() const;
  /// Keeps the memory as long as it is held.
  std::shared_ptr<void> hold() const;

 private:
  friend class Milestones;
  struct Held;
  explicit CommonMemory(std::shared_ptr<Held> held) : held_(std::move(held)) {}

  std::shared_ptr<Held> held_;
};

/// Numbers that only grow, some for each rank of a group: a rank raises its own and waits for all. What a rank wrote to
/// common memory before it reached a number is seen by those who waited for it.
/// Thread-safety: one thread at a time for each kind.
class Milestones {
 public:
  /// All at 0. Nothing where the ranks share no memory. Collective: over `comm`.
  static std::optional<Milestones> make(const Communicator& comm, int num_kinds);

  void reach(int kind, std::uint32_t number) const;
  /// Blocks: until every rank has reached `number`, or one beyond. Throws CommError when a rank is lost, and after the
  /// group's timeout; `what()` says what was waited for, the rank is added.
  void await_all(int kind, std::uint32_t number, const std::function<std::string()>& what) const;

 private:
  Milestones(CommonMemory memory, Communicator comm) : memory_(std::move(memory)), comm_(std::move(comm)) {}

  CommonMemory memory_;
  Communicator comm_;
};

}  // namespace tessera
