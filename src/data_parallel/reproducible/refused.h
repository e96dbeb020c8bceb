#pragma once

#include <string_view>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::data_parallel {

/// Whether an operator of ATen draws from a random generator: its result would depend on how many ranks draw.
bool draws_random_numbers(std::string_view operator_name);

/// Throws ConfigError for a module whose state depends on which micro-batches a rank sees, naming it.
void refuse_irreproducible_modules(const torch::nn::Module& model);

}  // namespace tessera::data_parallel
