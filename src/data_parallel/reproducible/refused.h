#pragma once

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::data_parallel {

/// Throws ConfigError for a module whose state depends on which micro-batches a rank sees, naming it.
void refuse_irreproducible_modules(const torch::nn::Module& model);

}  // namespace tessera::data_parallel
