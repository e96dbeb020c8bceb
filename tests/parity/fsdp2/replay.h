#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace tessera::testing {

/// Trains a sharded GPT-2 from the weights in a folder on the tokens beside them, each rank on its part of every batch:
/// what reference.py does with PyTorch's FSDP2. With more steps than batches it begins again.
/// Returns [steps, ranks] in double: each rank's loss before the step that it causes. Collective.
at::Tensor replay_sharded_gpt2(const std::filesystem::path& folder, std::int64_t num_steps, const Communicator& comm);

}  // namespace tessera::testing
