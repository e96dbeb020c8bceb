#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kNumWords = 5;

/// What a random model computes on.
struct Batch {
  at::Tensor x;             ///< batch, length, kWidth
  at::Tensor ids;           ///< batch, length: words below kNumWords
  at::Tensor switches;      ///< numbers whose signs branches follow
  bool may_recompute;       ///< off: what would be recomputed is kept
  int* num_then = nullptr;  ///< if given: how often branches went each way
  int* num_else = nullptr;
};

/// A module of a random model: maps batch.x's shape to the same. Its children are nodes or modules of LibTorch.
class Node : public torch::nn::Module {
 public:
  using Run = std::function<at::Tensor(const at::Tensor& x, const Batch& batch)>;

  explicit Node(std::string kind) : kind_(std::move(kind)) {}

  at::Tensor forward(const at::Tensor& x, const Batch& batch) { return run_(x, batch); }
  void runs(Run run) { run_ = std::move(run); }

  /// Adds a node as a child, under the next free name.
  const std::shared_ptr<Node>& adopt(const std::shared_ptr<Node>& child);
  /// The tree as text, a line for each node, by the names of the modules.
  std::string text(const std::string& indent = "") const;
  void remark(const std::string& words) { kind_ += ", " + words; }
  /// Of the tree: how many nodes run when it does.
  int num_nodes() const { return num_nodes_; }
  /// Something in the tree changes buffers when it runs: a second run would change them again.
  bool changes_buffers() const { return changes_buffers_; }
  void set_changes_buffers() { changes_buffers_ = true; }

 private:
  std::string kind_;
  Run run_;
  std::vector<std::shared_ptr<Node>> nodes_;
  int num_nodes_ = 1;
  bool changes_buffers_ = false;
};

using NodePtr = std::shared_ptr<Node>;

}  // namespace tessera::testing
