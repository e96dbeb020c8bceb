#include "pipeline/reproducible_sums.h"

#include <tessera/core/error.h>
#include <tessera/shard/plain_alias.h>
#include <tessera/shard/reproducible.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace tessera::pp {

ReproducibleSums::ReproducibleSums(StageModel& model, int num_micro_batches, std::set<std::size_t> in_parts)
    : model_(model), num_micro_batches_(num_micro_batches), in_parts_(std::move(in_parts)) {}

void ReproducibleSums::take(int micro_batch, int stage, const std::function<at::Tensor(std::size_t place)>& taken) {
  const at::NoGradGuard no_grad;
  for (std::size_t place = 0; place < model_.tensors.size(); ++place) {
    const StageTensor& one = model_.tensors[place];
    if (one.is_buffer || !one.tensor.requires_grad()) continue;
    at::Tensor gradient;
    if (model_.is_here(one.stage)) {
      gradient = std::exchange(at::Tensor(one.tensor).mutable_grad(), at::Tensor());
    } else if (model_.shared.contains(place)) {
      gradient = taken(place);
    }
    if (!gradient.defined()) continue;
    if (in_parts_.contains(place)) {
      parts_[place][micro_batch][stage] = std::move(gradient);
    } else {
      trees_.try_emplace(place, num_micro_batches_).first->second.add(micro_batch, std::move(gradient));
      in_trees_[place].insert(micro_batch);
    }
  }
}

at::Tensor ReproducibleSums::part(std::size_t place, int micro_batch, int stage) const {
  const auto of_place = parts_.find(place);
  if (of_place == parts_.end()) return {};
  const auto of_micro_batch = of_place->second.find(micro_batch);
  if (of_micro_batch == of_place->second.end()) return {};
  const auto found = of_micro_batch->second.find(stage);
  return found == of_micro_batch->second.end() ? at::Tensor() : found->second;
}

void ReproducibleSums::add_part(std::size_t place, int micro_batch, int stage, at::Tensor gradient) {
  if (gradient.defined()) parts_[place][micro_batch][stage] = std::move(gradient);
}

void ReproducibleSums::finish() {
  const at::NoGradGuard no_grad;
  for (auto& [place, micro_batches] : parts_) {
    if (!model_.is_here(model_.tensors[place].stage)) continue;
    GradientTree& tree = trees_.try_emplace(place, num_micro_batches_).first->second;
    for (auto& [micro_batch, parts] : micro_batches) {
      at::Tensor sum;
      for (auto& [stage, part] : parts) sum = sum.defined() ? sum + part : part;
      tree.add(micro_batch, std::move(sum));
      in_trees_[place].insert(micro_batch);
    }
  }
  for (std::size_t place = 0; place < model_.tensors.size(); ++place) {
    const StageTensor& one = model_.tensors[place];
    if (one.is_buffer || !one.tensor.requires_grad() || !model_.is_here(one.stage)) continue;
    GradientTree& tree = trees_.try_emplace(place, num_micro_batches_).first->second;
    for (int i = 0; i < num_micro_batches_; ++i) {
      // A micro-batch that does not use the parameter.
      if (!in_trees_[place].contains(i)) tree.add(i, at::zeros_like(one.tensor.detach()));
    }
    at::Tensor(one.tensor).mutable_grad() = plain_alias_of(tree.take());
  }
}

void require_reproducible(const StageModel& model, const std::vector<double>& weights,
                          const std::vector<const ForwardPlan*>& plans) {
  if (std::ranges::any_of(plans, [](const ForwardPlan* one) { return one->draws; })) {
    throw ConfigError(
        "reproducible mode refuses random numbers in the forward: copies of the stages would draw others" +
        model.where());
  }
  if (!std::has_single_bit(weights.size())) {
    throw ConfigError("reproducible mode needs a number of micro-batches that is a power of two, found " +
                      std::to_string(weights.size()) + model.where());
  }
  for (const double weight : weights) {
    if (weight == weights.front() && weight > 0) continue;
    throw ConfigError("reproducible mode needs micro-batches of equal weights, found " +
                      std::to_string(weights.front()) + " and " + std::to_string(weight) + model.where());
  }
  require_num_threads(1, model.world_rank, "A pipeline takes one");
  for (const StageTensor& one : model.tensors) {
    if (one.is_buffer || !model.is_here(one.stage)) continue;
    if (!drop_cleared_gradient(at::Tensor(one.tensor).mutable_grad())) refuse_gradients_left(model.world_rank);
  }
}

}  // namespace tessera::pp
