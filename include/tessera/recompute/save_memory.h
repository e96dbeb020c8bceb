#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

namespace recomputation {
struct SavedModel;
}  // namespace recomputation

struct SaveMemoryOptions {
  /// "basic" keeps all that autograd saves. "standard" keeps nothing of cheap operators (activation functions, norms,
  /// softmax, dropout, arithmetic of elements, copies) that can be computed again from what is kept anyway: less
  /// memory for little time. "aggressive" keeps only what enters a layer, for about a third more time. "extreme" is
  /// refused: it needs offload.
  TORCH_ARG(std::string, strategy) = "standard";
  /// For "aggressive": names of the modules that are computed again as one, in which `*` stands for any characters but
  /// a dot: "blocks.*". Default: the layers, which the model's ModuleLists and Sequentials hold. Name larger modules to
  /// keep less, smaller ones for a smaller peak while one is computed again.
  TORCH_ARG(std::vector<std::string>, modules) = {};

 public:
  static const FieldList<SaveMemoryOptions>& fields();
};

/// What a model keeps for backward.
struct SavedMemoryReport {
  std::int64_t kept_bytes = 0;           ///< at present, without parameters and buffers; of graphs that live
  std::int64_t num_kept = 0;             ///< pieces of memory with these bytes
  std::int64_t num_dropped = 0;          ///< tensors that were not kept, since save_memory()
  std::int64_t num_operators_again = 0;  ///< operators that ran again in backward, since save_memory()
};

/// Ends saving when it is destroyed. Graphs that exist by then still give their gradients.
class [[nodiscard]] MemorySaving {
 public:
  MemorySaving() = default;
  explicit MemorySaving(std::shared_ptr<recomputation::SavedModel> model);
  ~MemorySaving();
  MemorySaving(MemorySaving&& other) noexcept;
  MemorySaving& operator=(MemorySaving&& other) noexcept;

  /// All zero with "basic", which records nothing.
  SavedMemoryReport report() const;
  /// The modules that are computed again as one, by name; empty unless "aggressive".
  std::vector<std::string> modules() const;

 private:
  void end() noexcept;

  std::shared_ptr<recomputation::SavedModel> model_;
};

/// From now on, forwards of this model keep less for backward, which computes it again. The model is not changed and is
/// called as before. Forward gives the same bits; gradients are those of operators that ran twice with the same
/// arguments and random numbers.
///
/// It sees the operators that take the model's parameters, and those after them, on any thread. What it cannot compute
/// again for sure it keeps: see docs/guides/memory_strategies.md. Before or after distribute(), fully_shard() and
/// tensor_parallel(); with autocast; together with recompute().
/// Requires: nothing changes what was computed through a pointer that data_ptr() gave. Nothing changes the weights
/// before backward, in place or through data().
/// Throws ConfigError for a strategy that there is not, for names that fit no module, and for a model that has it
/// already. backward() throws ConfigError when something was changed that it needs.
MemorySaving save_memory(const std::shared_ptr<torch::nn::Module>& model, const SaveMemoryOptions& options = {});

}  // namespace tessera
