#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/optim/autocast.h>
#include <tessera/shard/tensor_bytes.h>
#include <tessera/train/parallelized_model.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "train/parallelized_state.h"

namespace tessera {
namespace {

std::string where(const ParallelizedState& shared) { return " (rank " + std::to_string(shared.world_rank) + ")"; }

void require_weights(const PipelineBatch& batch, const ParallelizedState& shared) {
  for (const double weight : batch.weights) {
    if (weight >= 0 && std::isfinite(weight)) continue;
    throw ConfigError("the weight of a micro-batch must be 0 or more, found " + std::to_string(weight) + where(shared));
  }
}

/// The part that this rank has of the weights of all batches.
double share_of_batches(const PipelineBatch& batch, const ParallelizedState& shared) {
  const double mine = std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0);
  if (!shared.batches) return mine > 0 ? 1 : 0;
  const at::Tensor all = shared.batches->all_gather(
      at::tensor({mine, static_cast<double>(batch.num_micro_batches)}, at::kDouble).view({1, 2}));
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto found = all[rank][1].item<double>();
    if (found == batch.num_micro_batches) continue;
    throw ConfigError("the batch of this rank has " + std::to_string(batch.num_micro_batches) +
                      " micro-batches, and that of rank " +
                      std::to_string(shared.batches->world_rank_of(static_cast<int>(rank))) + " has " +
                      std::to_string(static_cast<int>(found)) +
                      ": give all ranks batches of as many samples, or as many micro-batches" + where(shared));
  }
  const auto sum = all.select(1, 0).sum().item<double>();
  return sum > 0 ? mine / sum : 0;
}

/// Targets meet no cut layer, so that tensor parallelism does not see them. The stages of a pipeline compare theirs.
void require_same_batch(const PipelineBatch& batch, const ParallelizedState& shared) {
  if (!shared.layers || shared.num_steps_to_check == 0) return;
  --shared.num_steps_to_check;
  Digest values;
  for (int i = 0; i < batch.num_micro_batches; ++i) values.add(fingerprint_of(batch.tensors(i)));
  const at::Tensor all = shared.layers->all_gather(at::full({1}, static_cast<std::int64_t>(values.value()), at::kLong));
  for (std::int64_t rank = 1; rank < all.size(0); ++rank) {
    if (all[rank].item<std::int64_t>() == all[0].item<std::int64_t>()) continue;
    throw ConfigError("ranks " + std::to_string(shared.layers->world_rank_of(0)) + " and " +
                      std::to_string(shared.layers->world_rank_of(static_cast<int>(rank))) +
                      " share layers and have different batches: give all ranks along \"tp\" and \"pp\" the same, as "
                      "batch_ranks() tells" +
                      where(shared));
  }
}

void require_reproducible(const PipelineBatch& batch, const ParallelizedState& shared, int num_ranks) {
  if (shared.num_micro_batches != batch.num_micro_batches * num_ranks) {
    throw ConfigError("reproducible mode was set up for " + std::to_string(shared.num_micro_batches) +
                      " micro-batches over all ranks, and this batch has " +
                      std::to_string(batch.num_micro_batches * num_ranks) + where(shared) +
                      ": choose micro_batch_size so that they are as many");
  }
  for (const double weight : batch.weights) {
    if (weight == batch.weights.front()) continue;
    throw ConfigError("reproducible mode divides by the number of micro-batches, and these have different weights" +
                      where(shared) + ": give all as many samples");
  }
}

}  // namespace

ParallelizedModel::ParallelizedModel(const ParallelModel& model, std::shared_ptr<const ParallelizedState> state)
    : ParallelModel(model), shared_(std::move(state)) {}

const std::optional<Pipeline>& ParallelizedModel::pipeline() const { return shared_->pipeline; }

SavedMemoryReport ParallelizedModel::saved_memory() const { return shared_->saving.report(); }

int ParallelizedModel::num_micro_batches(std::int64_t num_samples) const {
  const std::int64_t size = shared_->micro_batch_size;
  return size == 0 || num_samples == 0 ? 1 : static_cast<int>((num_samples + size - 1) / size);
}

at::Tensor ParallelizedModel::run(PipelineBatch batch, bool trains, double loss_scale) const {
  require_weights(batch, *shared_);
  require_same_batch(batch, *shared_);
  const double share = share_of_batches(batch, *shared_);
  if (shared_->uses_autocast) {
    batch.loss = [loss = std::move(batch.loss), device = shared_->device.type()](int i) {
      const Autocast autocast(at::kBFloat16, device);
      return loss(i);
    };
  }
  // Copies and shards divide gradients by the number of ranks, as if their batches counted alike.
  const int num_ranks = shared_->batches ? shared_->batches->size() : 1;
  if (shared_->is_reproducible) require_reproducible(batch, *shared_, num_ranks);
  batch.loss_scale = loss_scale * share * num_ranks;
  at::Tensor loss = shared_->pipeline ? shared_->pipeline->run(batch, trains) : run_alone(batch, trains);
  if (!shared_->batches) return loss;
  const at::NoGradGuard no_grad;
  // Without samples that count, the mean is 0 / 0.
  loss = share > 0 ? loss * share : at::zeros_like(loss);
  shared_->batches->all_reduce(loss);
  return loss;
}

/// Without a pipeline: one micro-batch after the other.
at::Tensor ParallelizedModel::run_alone(const PipelineBatch& batch, bool trains) const {
  const at::AutoGradMode grad_mode(trains);
  const double sum = std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0);
  at::Tensor mean;
  for (int i = 0; i < batch.num_micro_batches; ++i) {
    const double weight = batch.weights[static_cast<std::size_t>(i)];
    const double share = weight > 0 ? weight / sum : 0;
    // The last one averages, unless every one is added up along a tree.
    std::optional<NoSync> alone;
    if (trains && i + 1 < batch.num_micro_batches && !shared_->is_reproducible) alone.emplace(*this);
    const at::Tensor loss = batch.loss(i);
    if (trains) (loss * (shared_->is_reproducible ? batch.loss_scale : share * batch.loss_scale)).backward();
    const at::NoGradGuard no_grad;
    const at::Tensor part = share > 0 ? loss.detach() * share : at::zeros_like(loss.detach());
    mean = mean.defined() ? mean + part : part;
  }
  return mean;
}

}  // namespace tessera
