#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::intercept {

/// The node of autograd that adds gradients to a parameter's. Graphs lead to it, and it lives as long as one of them or
/// this object.
/// Thread-safety: made and dropped while no backward pass runs; functions are called by whoever runs one.
class GradientNode {
 public:
  /// Requires: the parameter is a leaf that requires a gradient.
  explicit GradientNode(const at::Tensor& parameter);
  ~GradientNode();
  GradientNode(GradientNode&& other) noexcept;
  GradientNode& operator=(GradientNode&& other) noexcept;

  /// Calls it whenever a gradient was added, as long as this object lives.
  void after_adding(std::function<void()> call);
  /// Gives it every gradient, dense, and adds nothing: for good, also after this object is gone.
  void take(std::function<void(const at::Tensor& gradient)> call);

  /// False once the parameter was given other memory, as torch::load does: autograd then makes it another node, and
  /// forgets the functions of this one without a word.
  bool is_of(const at::Tensor& parameter) const;
  /// Whether the backward pass of this thread comes to it.
  bool will_run() const;
  /// What leads to it, or holds it: nodes of graphs, and whoever put hooks on it.
  std::size_t num_users() const;

 private:
  friend bool other_graphs_live(const std::vector<const GradientNode*>& nodes,
                                const std::vector<std::size_t>& num_others);
  struct Node;
  std::unique_ptr<Node> node_;
};

/// Whether other graphs than that of this thread's backward pass lead to one of these nodes: of forwards whose backward
/// is still to come, or of tensors that somebody keeps. `num_others[i]` are those users of node i that are no graphs.
bool other_graphs_live(const std::vector<const GradientNode*>& nodes, const std::vector<std::size_t>& num_others);

/// A tensor whose graph leads to these parameters and computes nothing.
at::Tensor output_that_reaches(const std::vector<at::Tensor>& parameters);

}  // namespace tessera::intercept
