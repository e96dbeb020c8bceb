#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// The layers of a model, by name, in the order in which it registers them: what its ModuleLists and Sequentials hold.
/// Lists inside of a layer belong to that layer.
std::vector<std::string> layer_names(const torch::nn::Module& model);

}  // namespace tessera
