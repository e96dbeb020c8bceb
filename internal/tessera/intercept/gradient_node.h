#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::intercept {

/// The node of autograd that accumulates the gradient of a parameter. Graphs lead to it. The node lives as long as one
/// of these graphs or this object.
/// Thread-safety: made and dropped while no backward pass runs; the functions are called by threads that run one.
class GradientNode {
 public:
  /// Requires: the parameter is a leaf that requires a gradient.
  explicit GradientNode(const at::Tensor& parameter);
  ~GradientNode();
  GradientNode(GradientNode&& other) noexcept;
  GradientNode& operator=(GradientNode&& other) noexcept;

  /// Calls `call` whenever a gradient was accumulated, as long as this object lives.
  void after_adding(std::function<void()> call);
  /// Passes every gradient, made dense, to `call` and accumulates nothing. Permanent, even after this object is gone.
  void take(std::function<void(const at::Tensor& gradient)> call);

  /// False once the parameter was given other memory, as torch::load does: autograd then makes a new node for it, and
  /// silently stops calling the functions of this one.
  bool is_of(const at::Tensor& parameter) const;
  /// Whether the backward pass of this thread will run this node.
  bool will_run() const;
  /// References to the node: from nodes of graphs, and from objects that put hooks on it.
  std::size_t num_users() const;

 private:
  friend bool other_graphs_live(const std::vector<const GradientNode*>& nodes,
                                const std::vector<std::size_t>& num_others);
  struct Node;
  std::unique_ptr<Node> node_;
};

/// As `parameter.register_hook()`, for a hook of this library: one to which gradients may come in any number of parts.
void register_own_hook(const at::Tensor& parameter, std::function<at::Tensor(const at::Tensor& gradient)> hook);
/// Whether the program has put hooks on a parameter, or on the node that accumulates its gradient.
bool has_hooks_of_program(const at::Tensor& parameter);

/// Whether graphs other than that of this thread's backward pass lead to one of these nodes: graphs of forwards whose
/// backward is still to come, or of tensors that are still held. `num_others[i]` counts the users of node i that are no
/// graphs.
bool other_graphs_live(const std::vector<const GradientNode*>& nodes, const std::vector<std::size_t>& num_others);

/// A tensor whose graph leads to these parameters and computes nothing.
at::Tensor output_that_reaches(const std::vector<at::Tensor>& parameters);

}  // namespace tessera::intercept
