#pragma once

#include <tessera/intercept/acting_tensor.h>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

namespace tessera::intercept {

/// Note [Gradients of wrappers]
/// Operators compute with inner tensors, so gradients flow between those and do not pass the wrappers. What a program
/// asks of a wrapper must reach its inner tensor all the same:
/// - Where a wrapper is the beginning of a pass, or an input of a custom function, its gradient passes a `Bridge` to
///   the inner tensor.
/// - Where it was made a leaf, or is the result of a custom function, the gradient of the inner tensor passes a
///   `Return` to the wrapper.
/// - Hooks and retain_grad() of a wrapper go to the inner tensor: AutogradFront.
/// - As an input of torch::autograd::grad() it is exchanged for the inner tensor, and the result is wrapped:
///   OutputEdges.
class Bridge : public torch::autograd::Node {
 public:
  Bridge(torch::autograd::Edge inner, ActingDataPtr data);
  const ActingDataPtr& data() const { return data_; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "tessera::Bridge"; }

 private:
  ActingDataPtr data_;
};

class Return : public torch::autograd::Node {
 public:
  Return(torch::autograd::Edge outer, ActingDataPtr data, bool leads_to_leaf);
  bool leads_to_leaf() const { return leads_to_leaf_; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "tessera::Return"; }

 private:
  ActingDataPtr data_;
  bool leads_to_leaf_;
};

/// Leads to a marked tensor from the alias that operators compute with. If the tensor holds a part, its gradient does
/// so too.
class ToMarked : public torch::autograd::Node {
 public:
  explicit ToMarked(const at::Tensor& marked);
  /// Of a tensor that holds a part.
  ToMarked(const at::Tensor& marked, ActingDataPtr data, at::IntArrayRef part_strides);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "tessera::ToMarked"; }

 private:
  ActingDataPtr data_;
  // One is made for each use of a parameter: memory of their own would be most of what that costs.
  at::DimVector sizes_;
  at::DimVector strides_;
  at::DimVector part_strides_;
};

/// The edges that a pass is asked for, those of wrappers exchanged for their inner tensors'.
class OutputEdges {
 public:
  explicit OutputEdges(const torch::autograd::edge_list& outputs);
  const torch::autograd::edge_list& inner() const { return wrappers_.empty() ? given_ : inner_; }
  /// What the pass returned, for the edges that were given.
  torch::autograd::variable_list outer_gradients(torch::autograd::variable_list gradients) const;

 private:
  const torch::autograd::edge_list& given_;
  torch::autograd::edge_list inner_;
  std::vector<std::pair<std::size_t, ActingDataPtr>> wrappers_;  // their places
};

}  // namespace tessera::intercept
