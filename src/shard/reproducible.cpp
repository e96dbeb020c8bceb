#include <tessera/shard/reproducible.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>

#include <bit>

namespace tessera {
namespace {

bool is_power_of_two(std::int64_t number) {
  return number > 0 && std::has_single_bit(static_cast<std::uint64_t>(number));
}

template <class Dropout>
bool is_active(const torch::nn::Module& module) {
  const auto* dropout = module.as<Dropout>();
  return dropout && dropout->options.p() > 0;
}

bool drops(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return is_active<nn::DropoutImpl>(module) || is_active<nn::Dropout2dImpl>(module) ||
         is_active<nn::Dropout3dImpl>(module) || is_active<nn::AlphaDropoutImpl>(module) ||
         is_active<nn::FeatureAlphaDropoutImpl>(module);
}

}  // namespace

std::string faults_of_tree(std::int64_t micro_batches, std::int64_t num_ranks) {
  std::string faults;
  if (!is_power_of_two(num_ranks)) {
    faults += "\n  reproducible needs a power of two of ranks, the group has " + std::to_string(num_ranks);
  }
  if (!is_power_of_two(micro_batches) || micro_batches < num_ranks) {
    faults += "\n  reproducible needs micro_batches, the number of a step over all ranks: a power of two, at least " +
              std::to_string(num_ranks) + "; found " + std::to_string(micro_batches);
  }
  return faults;
}

void refuse_irreproducible_modules(const torch::nn::Module& model) {
  for (const auto& entry : model.named_modules()) {
    const torch::nn::Module& module = *entry.value();
    const std::string who = "reproducible mode refuses \"" + entry.key() + "\", a " + module.name() + ": ";
    if (module.named_buffers(/*recurse=*/false).contains("running_mean")) {
      throw ConfigError(who +
                        "its running statistics depend on which micro-batches a rank sees. Use LayerNorm or "
                        "GroupNorm");
    }
    if (drops(module)) {
      throw ConfigError(who + "its random numbers would depend on the number of ranks. Set its p to 0");
    }
  }
}

// Note [Kernels in reproducible mode]
// Some kernels cut their sums by the number of threads (the gradient of LayerNorm's weight, for one), so that number
// is part of the result: it is set here and checked in every step. Kernels whose result may differ from call to call
// are refused by LibTorch, by name. Filling fresh memory would only help those who read it before they write it.
void use_reproducible_kernels(int num_threads) {
  at::set_num_threads(num_threads);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void require_num_threads(int num_threads, int world_rank, const std::string& what_to_do) {
  if (at::get_num_threads() == num_threads) return;
  throw ConfigError("reproducible mode was set up for " + std::to_string(num_threads) +
                    " threads a rank, and now there are " + std::to_string(at::get_num_threads()) + " (rank " +
                    std::to_string(world_rank) + "): results would differ. " + what_to_do);
}

bool drop_cleared_gradient(at::Tensor& gradient) {
  if (gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0) return false;
  gradient = at::Tensor();
  return true;
}

void refuse_gradients_left(int world_rank) {
  throw ConfigError("reproducible mode needs the gradients cleared before a forward (rank " +
                    std::to_string(world_rank) +
                    "): call zero_grad() after the optimizer's step, and look at parameters under NoGradGuard");
}

ConfigError refusal_of_random_operator(std::string_view operator_name, int world_rank) {
  return ConfigError("reproducible mode refuses " + std::string(operator_name) + " (rank " +
                     std::to_string(world_rank) +
                     "): its random numbers would depend on the number of ranks. Set dropout to 0, or draw them before "
                     "the forward from a generator of your own");
}

}  // namespace tessera
