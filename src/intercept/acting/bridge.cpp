#include "intercept/acting/bridge.h"

#include <tessera/intercept/sole_owner.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

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

ToMarked::ToMarked(const at::Tensor& marked)
    : Node(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(marked)}) {}

ToMarked::ToMarked(const at::Tensor& marked, ActingDataPtr data, at::IntArrayRef part_strides)
    : Node(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(marked)}),
      data_(std::move(data)),
      sizes_(marked.sizes()),
      strides_(marked.strides()),
      part_strides_(part_strides) {}

variable_list ToMarked::apply(variable_list&& gradients) {
  const at::Tensor& gradient = gradients.front();
  if (!data_ || !gradient.defined()) return std::move(gradients);
  // One that has a history of its own must lead there.
  if (gradient.requires_grad()) return {data_->kind().outer_gradient(gradient, data_)};
  // As autograd does for parameters: a gradient lies in memory as its parameter does, and is nobody else's. A sum gives
  // its gradient to all that were added.
  const bool lies_so = gradient.strides() == at::IntArrayRef(part_strides_) && is_sole_owner(gradient);
  at::Tensor part = lies_so ? gradient : at::empty_strided(gradient.sizes(), part_strides_, gradient.options());
  if (!lies_so) part.copy_(gradient);
  return {make_part(std::move(part), data_, sizes_, strides_)};
}

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
