#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// `root`'s values of all tensors on every rank, small ones together. Collective: over `comm`.
void broadcast_all(const Communicator& comm, const std::vector<at::Tensor>& tensors, int root);
/// The average of each tensor over the ranks, in place, small ones together. Collective: over `comm`.
void average_all(const Communicator& comm, const std::vector<at::Tensor>& tensors);

}  // namespace tessera
