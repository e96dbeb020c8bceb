#pragma once

#include <tessera/mesh/three_d_parallelism.h>
#include <tessera/recompute/save_memory.h>

#include <memory>

namespace tessera {

/// save_memory() for a layout, which has a name for each strategy: give it `config.effective_memory_strategy()`.
MemorySaving save_memory(const std::shared_ptr<torch::nn::Module>& model, MemoryStrategy strategy);

}  // namespace tessera
