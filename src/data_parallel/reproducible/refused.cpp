#include "data_parallel/reproducible/refused.h"

#include <tessera/core/error.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>

namespace tessera::data_parallel {
namespace {

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

}  // namespace tessera::data_parallel
