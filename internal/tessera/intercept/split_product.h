#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::intercept {

/// Note [Weight gradients apart]
/// Backward of a product has two gradients to compute, and LibTorch's node computes both before one of them goes on.
/// The graph before the product waits for the input's alone. Here they are two nodes, so that the weight's can be
/// computed while something is sent. The numbers are those of LibTorch's node.

/// Gives `result`, which was computed from the others without a history, its history: result = input x weight + bias,
/// with a weight of [inputs, outputs]; `bias` may be undefined. Of the nodes that could run, autograd's engine takes
/// the one with the greatest number: `weight_number` is that of the node with the gradients of weight and bias.
/// Requires: real numbers; grad mode; input and weight have gradients.
void connect_split_product(at::Tensor& result, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, std::uint64_t weight_number);

/// Gradients of weights that are computed when somebody asks for them, and not with the rest of the pass.
/// Thread-safety: add() from any thread, run() while no pass adds.
class DeferredGradients {
 public:
  DeferredGradients();
  ~DeferredGradients();
  DeferredGradients(const DeferredGradients&) = delete;
  DeferredGradients& operator=(const DeferredGradients&) = delete;

  /// Computes them and passes them on to their parameters, in the order of the pass.
  void run();
  bool empty() const;

 private:
  friend class DeferringProduct;
  struct Waiting;
  std::unique_ptr<Waiting> waiting_;
};

/// As connect_split_product(), with the gradients of weight and bias left to `deferred`.
void connect_deferred_product(at::Tensor& result, const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& bias, std::shared_ptr<DeferredGradients> deferred);
/// Whether a tensor is a parameter without hooks, or one turned around or in another precision: gradients may reach it
/// at any time, and in several parts. Others share a graph with what computed them, which a pass frees.
bool leads_to_a_parameter_alone(const at::Tensor& tensor);

/// In the precision that autocast uses for products; the tensor itself without autocast.
at::Tensor in_product_precision(const at::Tensor& tensor);

}  // namespace tessera::intercept
