#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera::testing::sim {

/// Collectives of tensors on simulated devices, with NCCL's meaning: a call returns at once and runs on a stream of the
/// backend's own, behind what the current stream had when it was called; `wait()` lets the current stream wait, not the
/// host. `cpu` carries the bytes, and nobody else may use it. Messages have a stream for each other rank.
c10::intrusive_ptr<c10d::Backend> make_sim_backend(c10::intrusive_ptr<c10d::Backend> cpu);

}  // namespace tessera::testing::sim
