#pragma once

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Throws ConfigError for an embedding whose gradients are sparse, naming it.
void refuse_sparse_gradients(const torch::nn::Module& model);

/// Throws ConfigError for a model whose parameters are not all on one device, naming two; or of which some state is on
/// meta.
void refuse_several_devices(const torch::nn::Module& model);

/// Throws ConfigError for a model of which tensor parallelism has cut a buffer, naming it.
void refuse_cut_buffers(const torch::nn::Module& model);
/// The same for a parameter.
void refuse_cut_models(const torch::nn::Module& model);

/// Throws ConfigError for an embedding with `max_norm`, naming it: its forward changes the rows that it looks up, and
/// each rank looks up different rows.
void refuse_renormalising_modules(const torch::nn::Module& model);

}  // namespace tessera
