#pragma once

#include <tessera/comm/world.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::comm {

/// The three operations on tensors of one size, by one contestant.
struct Contestant {
  std::string name;
  std::function<void(at::Tensor whole)> all_reduce;
  std::function<void(at::Tensor whole, at::Tensor piece)> all_gather;
  std::function<void(at::Tensor piece, at::Tensor whole)> reduce_scatter;
  /// Makes the tensors on which it works.
  std::function<at::Tensor(std::int64_t count)> allocate;
  /// Set for a contestant of which only its own part of a call is measured. Returns the seconds since the last time
  /// that were spent in other code; nothing when none were. See Note [What our layer costs].
  std::function<std::optional<double>()> elsewhere = nullptr;
};

/// All contestants that work in this world.
std::vector<Contestant> contestants_of(const World& world);

/// The world's ranks over another backend.
Communicator on_backend(const World& world, const std::string& backend);

/// MPI called directly; nothing where MPI did not start the processes.
std::vector<Contestant> bare_mpi(const World& world);

}  // namespace tessera::comm
