#include "intercept/acting/bridge.h"

#include <utility>

namespace tessera::intercept {

using torch::autograd::variable_list;

Bridge::Bridge(torch::autograd::Edge inner, ActingDataPtr data)
    : Node(torch::autograd::edge_list{std::move(inner)}), data_(std::move(data)) {}

variable_list Bridge::apply(variable_list&& gradients) {
  if (!gradients.front().defined()) return std::move(gradients);
  return {data_->kind().inner_gradient(gradients.front(), *data_)};
}

Return::Return(torch::autograd::Edge outer, ActingDataPtr data, bool leads_to_leaf)
    : Node(torch::autograd::edge_list{std::move(outer)}), data_(std::move(data)), leads_to_leaf_(leads_to_leaf) {}

variable_list Return::apply(variable_list&& gradients) {
  if (!gradients.front().defined()) return std::move(gradients);
  return {data_->kind().outer_gradient(gradients.front(), data_)};
}

ToMarked::ToMarked(torch::autograd::Edge marked) : Node(torch::autograd::edge_list{std::move(marked)}) {}

variable_list ToMarked::apply(variable_list&& gradients) { return std::move(gradients); }

OutputEdges::OutputEdges(const torch::autograd::edge_list& outputs) : given_(outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto* const bridge = dynamic_cast<const Bridge*>(outputs[i].function.get());
    if (!bridge) continue;
    if (wrappers_.empty()) inner_ = outputs;
    inner_[i] = bridge->next_edge(0);
    wrappers_.emplace_back(i, bridge->data());
  }
}

variable_list OutputEdges::outer_gradients(variable_list gradients) const {
  for (const auto& [place, data] : wrappers_) {
    if (place >= gradients.size() || !gradients[place].defined()) continue;
    gradients[place] = data->kind().outer_gradient(gradients[place], data);
  }
  return gradients;
}

}  // namespace tessera::intercept
