#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// Copies `root`'s values of all tensors to every rank; small tensors share a message. Collective: over `comm`.
void broadcast_all(const Communicator& comm, const std::vector<at::Tensor>& tensors, int root);
/// Averages each tensor over the ranks, in place; small tensors share a message. Collective: over `comm`.
void average_all(const Communicator& comm, const std::vector<at::Tensor>& tensors);

}  // namespace tessera
