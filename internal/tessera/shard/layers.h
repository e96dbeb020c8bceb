#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::shard {

/// The layers of a model, in the order in which it registers them: the elements of its `ModuleList`s and
/// `Sequential`s. A list inside a layer is a part of that layer.
std::vector<std::string> layer_names(const torch::nn::Module& model);

}  // namespace tessera::shard
