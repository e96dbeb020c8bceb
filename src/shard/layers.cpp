#include <tessera/shard/layers.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

namespace tessera::shard {
namespace {

bool is_list(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

bool lies_in(const std::string& name, const std::string& layer) {
  return name == layer || name.starts_with(layer + ".");
}

}  // namespace

std::vector<std::string> layer_names(const torch::nn::Module& model) {
  std::vector<std::string> layers;
  for (const auto& item : model.named_modules("", true)) {
    const std::string& name = item.key();
    if (!is_list(*item.value())) continue;
    if (std::ranges::any_of(layers, [&](const std::string& layer) { return lies_in(name, layer); })) continue;
    for (const auto& child : item.value()->named_children()) {
      layers.push_back(name.empty() ? child.key() : name + "." + child.key());
    }
  }
  return layers;
}

}  // namespace tessera::shard
