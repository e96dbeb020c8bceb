#include <tessera/shard/layer_names.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

namespace tessera {

std::vector<std::string> layer_names(const torch::nn::Module& model) {
  std::vector<std::string> layers;
  for (const auto& item : model.named_modules("", true)) {
    const torch::nn::Module& module = *item.value();
    const bool is_list = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
                         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
    const std::string& name = item.key();
    const bool is_inside = std::ranges::any_of(
        layers, [&](const std::string& layer) { return name == layer || name.starts_with(layer + "."); });
    if (!is_list || is_inside) continue;
    for (const auto& child : module.named_children())
      layers.push_back(name.empty() ? child.key() : name + "." + child.key());
  }
  return layers;
}

}  // namespace tessera
