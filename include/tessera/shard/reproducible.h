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

// What reproducible mode asks of a program, whoever shards or replicates its model. See docs/guides/reproducible.md.

/// Why a step of so many micro-batches cannot be one tree over so many ranks: a line for each fault, "" without one.
std::string faults_of_tree(std::int64_t micro_batches, std::int64_t num_ranks);

/// Throws ConfigError for a module whose state depends on which micro-batches a rank sees, naming it.
void refuse_irreproducible_modules(const torch::nn::Module& model);

/// Sets the number of threads of this rank's kernels, and LibTorch's deterministic algorithms, for good.
void use_reproducible_kernels(int num_threads);
/// Throws ConfigError when the number of threads is another by now. `what_to_do` ends the message.
void require_num_threads(int num_threads, int world_rank, const std::string& what_to_do);

/// A gradient of zeros becomes none. False for another one: it was to be cleared before the forward.
bool drop_cleared_gradient(at::Tensor& gradient);
/// Throws ConfigError for such a one.
[[noreturn]] void refuse_gradients_left(int world_rank);

/// For an operator that draws random numbers in a forward or a backward.
ConfigError refusal_of_random_operator(std::string_view operator_name, int world_rank);

}  // namespace tessera
