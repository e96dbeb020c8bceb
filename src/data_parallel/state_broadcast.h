#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::data_parallel {

/// `root`'s values of all tensors on every rank, small ones together. Collective: over `comm`.
void broadcast_all(const Communicator& comm, const std::vector<at::Tensor>& tensors, int root);

}  // namespace tessera::data_parallel
