#pragma once

#include <tessera/core/error.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

// What reproducible mode requires of a program, whether its model is sharded or replicated. See
// docs/guides/reproducible.md.

/// Why `micro_batches` cannot be added along one tree over `num_ranks`: a line for each fault, "" without one.
std::string faults_of_tree(std::int64_t micro_batches, std::int64_t num_ranks);

/// Throws ConfigError for a module whose state depends on which micro-batches a rank sees, naming it.
void refuse_irreproducible_modules(const torch::nn::Module& model);

/// Sets the number of threads of this rank's kernels and turns on LibTorch's deterministic algorithms, permanently.
void use_reproducible_kernels(int num_threads);
/// Throws ConfigError when the number of threads has changed. `what_to_do` ends the message.
void require_num_threads(int num_threads, int world_rank, const std::string& what_to_do);

/// Makes a gradient of zeros undefined. Returns false for any other gradient: it should have been cleared before the
/// forward.
bool drop_cleared_gradient(at::Tensor& gradient);
/// Throws ConfigError: gradients were not cleared before the forward.
[[noreturn]] void refuse_gradients_left(int world_rank);

/// The error for an operator that draws random numbers in a forward or a backward.
ConfigError refusal_of_random_operator(std::string_view operator_name, int world_rank);

}  // namespace tessera
