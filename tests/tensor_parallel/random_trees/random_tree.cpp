#include "tensor_parallel/random_trees/random_tree.h"

#include <tessera/recompute/recompute.h>

#include <torch/torch.h>

#include <vector>

#include "fsdp/random_models/dice.h"
#include "fsdp/random_models/leaves.h"
#include "fsdp/random_models/random_model.h"
#include "tensor_parallel/random_trees/more_leaves.h"

namespace tessera::testing {
namespace {

using at::Tensor;

NodePtr framed(const NodePtr& inner, Dice& dice) {
  const auto choice = dice.below(4);
  if (choice > 1 || (choice == 1 && inner->changes_buffers())) return inner;
  const auto node = std::make_shared<Node>(choice == 0 ? "residual" : "recomputed");
  node->adopt(inner);
  node->runs([inner, choice](const Tensor& x, const Batch& batch) {
    if (choice == 0) return x + inner->forward(x, batch);
    if (!batch.may_recompute) return inner->forward(x, batch);
    return recompute([inner, batch](const Tensor& input) { return inner->forward(input, batch); }, x);
  });
  return node;
}

}  // namespace

NodePtr make_random_tree(std::uint64_t seed) {
  Dice dice(seed + 2'000'003);
  const auto root = std::make_shared<Node>("tree");
  std::vector<NodePtr> parts;
  const auto add_leaves = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) parts.push_back(root->adopt(framed(another_leaf(dice), dice)));
  };
  add_leaves(dice.below(3));
  if (dice.chance(60)) parts.push_back(root->adopt(make_random_model(seed)));
  add_leaves(dice.below(3));
  parts.push_back(root->adopt(linear_leaf()));
  root->runs([parts](Tensor x, const Batch& batch) {
    for (const NodePtr& part : parts) x = part->forward(x, batch);
    return x;
  });
  root->to(torch::kDouble);
  fill_from_seed(*root, seed);
  return root;
}

}  // namespace tessera::testing
