#include "fsdp/random_models/random_model.h"

#include <tessera/recompute/recompute.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <vector>

#include "fsdp/random_models/leaves.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr int kMaxSharedNodes = 4;

class Builder {
 public:
  explicit Builder(std::uint64_t seed) : dice_(seed) {}

  NodePtr model() {
    const auto root = with("model");
    const int depth = 1 + static_cast<int>(dice_.below(3));
    const auto num_parts = 1 + dice_.below(3);
    std::vector<NodePtr> parts;
    for (std::int64_t i = 0; i < num_parts; ++i) parts.push_back(root->adopt(subtree(depth)));
    if (dice_.chance(40)) parts.push_back(root->adopt(frozen(subtree(1))));
    if (dice_.chance(40)) parts.push_back(root->adopt(branch(1)));
    if (dice_.chance(50)) parts.push_back(root->adopt(shared()));
    if (dice_.chance(30)) root->adopt(subtree(1))->remark("never called");
    parts.push_back(root->adopt(linear_leaf()));
    root->runs([parts](const Tensor& x, const Batch& batch) { return in_turn(parts, x, batch); });
    return root;
  }

 private:
  static NodePtr with(const std::string& kind) { return std::make_shared<Node>(kind); }

  static Tensor in_turn(const std::vector<NodePtr>& nodes, Tensor x, const Batch& batch) {
    for (const auto& node : nodes) x = node->forward(x, batch);
    return x;
  }

  NodePtr subtree(int depth) {
    const NodePtr node = depth == 0 ? leaf() : container(depth);
    made_.push_back(node);
    return node;
  }

  NodePtr leaf() {
    const NodePtr node = random_leaf(dice_);
    for (const Tensor& parameter : node->parameters()) {
      const bool is_square = parameter.dim() == 2 && parameter.size(0) == kWidth && parameter.size(1) == kWidth;
      if (is_square) matrices_.push_back(parameter);
    }
    return node;
  }

  NodePtr container(int depth) {
    switch (dice_.below(9)) {
      case 0:
        return residual(depth);
      case 1:
        return sum(depth);
      case 2:
        return branch(depth);
      case 3:
        return recomputed(depth);
      case 4:
        return shared();
      case 5:
        return detached(depth);
      case 6:
        return twice(depth);
      case 7:
        return frozen(subtree(depth - 1));
      default:
        return sequence(depth);
    }
  }

  NodePtr sequence(int depth) {
    const auto node = with("sequence");
    std::vector<NodePtr> nodes;
    for (std::int64_t i = 0, count = 2 + dice_.below(2); i < count; ++i)
      nodes.push_back(node->adopt(subtree(depth - 1)));
    node->runs([nodes](const Tensor& x, const Batch& batch) { return in_turn(nodes, x, batch); });
    return node;
  }

  NodePtr residual(int depth) {
    const auto node = with("residual");
    const auto inner = node->adopt(subtree(depth - 1));
    node->runs([inner](const Tensor& x, const Batch& batch) { return x + inner->forward(x, batch); });
    return node;
  }

  NodePtr sum(int depth) {
    const auto node = with("sum");
    const auto left = node->adopt(subtree(depth - 1));
    const auto right = node->adopt(subtree(depth - 1));
    node->runs([left, right](const Tensor& x, const Batch& batch) {
      return (left->forward(x, batch) + right->forward(x, batch)) / 2;
    });
    return node;
  }

  NodePtr branch(int depth) {
    const auto index = dice_.below(kNumSwitches);
    const auto node = with("branch by switch " + std::to_string(index));
    const auto yes = node->adopt(subtree(depth - 1));
    // Without a node for "no", what the other one holds is unused at times.
    const NodePtr no = dice_.chance(50) ? node->adopt(subtree(depth - 1)) : nullptr;
    node->runs([=](const Tensor& x, const Batch& batch) {
      const bool is_yes = batch.switches[index].item<double>() > 0;
      if (int* const count = is_yes ? batch.num_then : batch.num_else) ++*count;
      if (is_yes) return yes->forward(x, batch);
      return no ? no->forward(x, batch) : x;
    });
    return node;
  }

  NodePtr recomputed(int depth) {
    auto inner = subtree(depth - 1);
    if (inner->changes_buffers()) return inner;
    const auto node = with("recomputed");
    node->adopt(inner);
    node->runs([inner](const Tensor& x, const Batch& batch) {
      if (!batch.may_recompute) return inner->forward(x, batch);
      return recompute([inner, batch](const Tensor& input) { return inner->forward(input, batch); }, x);
    });
    return node;
  }

  NodePtr shared() {
    if (!matrices_.empty() && dice_.chance(50)) return tied_leaf(dice_.pick(matrices_));
    std::vector<NodePtr> small;
    for (const NodePtr& node : made_) {
      if (node->num_nodes() <= kMaxSharedNodes) small.push_back(node);
    }
    if (small.empty()) return leaf();
    const auto node = with("shared");
    const auto inner = node->adopt(dice_.pick(small));
    node->runs([inner](const Tensor& x, const Batch& batch) { return inner->forward(x, batch); });
    return node;
  }

  NodePtr detached(int depth) {
    const bool without_graph = dice_.chance(50);
    const auto node = with(without_graph ? "without a graph" : "detached");
    const auto inner = node->adopt(subtree(depth - 1));
    node->runs([inner, without_graph](const Tensor& x, const Batch& batch) {
      if (!without_graph) return x + inner->forward(x, batch).detach();
      const auto extra = [&] {
        const torch::NoGradGuard no_grad;
        return inner->forward(x, batch);
      };
      return x + extra();
    });
    return node;
  }

  NodePtr twice(int depth) {
    const auto node = with("twice");
    const auto inner = node->adopt(subtree(depth - 1));
    node->runs(
        [inner](const Tensor& x, const Batch& batch) { return inner->forward(inner->forward(x, batch), batch); });
    return node;
  }

  NodePtr frozen(const NodePtr& node) {
    const bool all = dice_.chance(50);
    node->remark(all ? "frozen" : "frozen in part");
    std::size_t index = 0;
    for (Tensor& parameter : node->parameters()) {
      if (all || index++ % 2 == 0) parameter.set_requires_grad(false);
    }
    return node;
  }

  Dice dice_;
  std::vector<NodePtr> made_;
  std::vector<Tensor> matrices_;
};

}  // namespace

void fill_from_seed(Node& model, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(seed);
  for (Tensor& parameter : model.parameters()) parameter.uniform_(-0.7, 0.7, generator);
  for (Tensor& buffer : model.buffers()) {
    if (buffer.is_floating_point()) buffer.uniform_(0.5, 1.5, generator);
  }
}

NodePtr make_random_model(std::uint64_t seed) {
  const NodePtr model = Builder(seed).model();
  model->to(torch::kDouble);
  fill_from_seed(*model, seed);
  return model;
}

}  // namespace tessera::testing
