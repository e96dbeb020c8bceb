#pragma once

#include <tessera/intercept/custom_node.h>

#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "data_parallel/replicas/replica_threads.h"

namespace tessera::data_parallel {

/// Keeps a clone up to date with the module that it was cloned from.
class Mirror {
 public:
  Mirror(std::shared_ptr<torch::nn::Module> original, std::shared_ptr<torch::nn::Module> clone);

  /// Updates parameters, buffers, requires_grad and training modes.
  void refresh();

  /// A parameter of the clone, each listed once, and the original that it belongs to. An original may have several
  /// clones, when the model shares it between layers in a way that clone() does not reproduce.
  struct Pair {
    at::Tensor original;
    at::Tensor clone;
  };
  const std::vector<Pair>& parameters() const { return parameters_; }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> original_modules_;
  std::vector<std::shared_ptr<torch::nn::Module>> clone_modules_;
  std::vector<Pair> parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // original, clone
};

/// A copy of the module, with parameters and buffers of its own. Leaves the default random generator as it was.
/// Throws ConfigError when the module cannot be cloned.
std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device);

/// What one replica did in a forward, and what its backward needs.
struct ReplicaPass {
  /// A leaf of this replica's graph.
  struct Leaf {
    at::Tensor tensor;
    std::size_t place = 0;  ///< of its gradient among the outputs of the node
  };
  at::Tensor output;  ///< with the replica's own graph
  std::vector<Leaf> parameters;
  std::vector<at::Tensor> inputs;  ///< leaves too; their places come after those of all parameters
};

/// The forward of all replicas as one node of the caller's graph. Its backward runs the replicas' backwards in parallel
/// and returns the gradients of the original's parameters, summed in the order of the replicas, then those of the
/// inputs.
class ReplicaNode : public torch::autograd::Node {
 public:
  /// Replica 0's parameters are the original's, each once and in the order of their places.
  ReplicaNode(std::shared_ptr<ReplicaThreads> threads, std::vector<ReplicaPass> passes, std::int64_t dim);

  std::string name() const override { return "DataParallelBackward"; }
  void will_release_variables() override { keeps_graph_ = false; }
  void release_variables() override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  using Tensors = std::vector<at::Tensor>;
  // The gradients of each replica, at the places of the node's outputs; undefined where there is none.
  std::vector<Tensors> run_backwards(const at::Tensor& gradient);
  Tensors run_backward(const ReplicaPass& pass, const at::Tensor& gradient, const std::vector<bool>& needed) const;
  // Undefined where no replica has one.
  Tensors sum_over_replicas(const std::vector<Tensors>& gradients);
  at::Tensor join_over_replicas(const std::vector<Tensors>& gradients, std::size_t input) const;

  std::shared_ptr<ReplicaThreads> threads_;
  std::vector<ReplicaPass> passes_;
  std::int64_t dim_;
  std::vector<c10::Stream> streams_;  // of the forward, as autograd keeps the stream of each node: one for each device
  bool keeps_graph_ = true;
};

}  // namespace tessera::data_parallel
