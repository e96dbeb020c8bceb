#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/same_model.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "fsdp/check_model.h"
#include "fsdp/fsdp_state.h"

namespace tessera {
namespace {

using fsdp::FsdpState;
using fsdp::Notice;
using fsdp::UnitRanks;

/// Why these options cannot be met; "" when they can.
std::string fault_of(const torch::nn::Module& model, const UnitRanks& ranks, const FsdpOptions& options) {
  try {
    FsdpOptions::fields().check(options);
    if (options.reproducible()) refuse_irreproducible_modules(model);
    const auto plan = fsdp::plan_units(model, options);
    if (auto fault = fsdp::fault_of(model, plan); !fault.empty()) return fault;
  } catch (const ConfigError& fault) {
    return fault.what();
  }
  std::string faults;
  if (options.reproducible()) {
    faults = faults_of_tree(options.micro_batches(), ranks.num_ranks());
  } else if (options.micro_batches() != 0) {
    faults = "\n  micro_batches is for reproducible(true) only";
  }
  return faults.empty() ? "" : "the options of sharding cannot be met:" + faults;
}

/// What must be the same on every rank.
std::vector<std::string> lines_of(const torch::nn::Module& model, const FsdpOptions& options) {
  std::vector<std::string> lines;
  for (const auto& field : FsdpOptions::fields().fields()) {
    lines.push_back("option " + field.key + " = " + FsdpOptions::fields().get_text(options, field.key));
  }
  lines.push_back("wrap policy " + options.auto_wrap().text());
  lines.push_back(std::string("row_sources ") + (options.row_sources() ? "given" : "none"));
  const auto tensors = described(state_of(model));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

ShardedModel make_sharded(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks, const FsdpOptions& options,
                          Notice notice) {
  if (!model) throw ConfigError("there is no model to shard: the pointer is null");
  const std::string fault = fault_of(*model, ranks, options);
  auto lines = lines_of(*model, options);
  // One rank that refuses must not leave the others waiting.
  lines.push_back("fault: " + fault);
  std::replace(lines.back().begin(), lines.back().end(), '\n', ' ');
  ranks.require_same([&](const Communicator& comm) { require_same_lines(comm, lines); },
                     [&](const std::string& difference) { lines.push_back(difference); });
  if (!fault.empty()) throw ConfigError(fault + " (rank " + std::to_string(ranks.shards.world_rank()) + ")");
  return ShardedModel(FsdpState::make(std::move(model), ranks, options, notice));
}

ShardedModel shard_along_one_axis(std::shared_ptr<torch::nn::Module> model, const Communicator& comm,
                                  const FsdpOptions& options, Notice notice) {
  if (options.strategy() == ShardingStrategy::kHybridShard) {
    throw ConfigError(
        "hybrid sharding needs two axes: fully_shard(model, mesh[\"shard\"], mesh[\"replica\"], options)");
  }
  if (options.strategy() == ShardingStrategy::kNoShard) {
    return make_sharded(std::move(model), {comm.split({comm.rank()}, "no_shard"), comm}, options, notice);
  }
  return make_sharded(std::move(model), {comm, std::nullopt}, options, notice);
}

}  // namespace

ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks, const FsdpOptions& options) {
  return shard_along_one_axis(std::move(model), ranks.comm(), options, Notice::kOperators);
}

ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& shards, const Ranks& replicas,
                         const FsdpOptions& options) {
  FsdpOptions hybrid = options;
  hybrid.strategy(ShardingStrategy::kHybridShard);
  return make_sharded(std::move(model), {shards.comm(), replicas.comm()}, hybrid, Notice::kOperators);
}

ShardedModel fsdp::shard_block(const std::shared_ptr<torch::nn::Module>& block, const Ranks& ranks,
                               const FsdpOptions& options) {
  FsdpOptions together = options;
  together.auto_wrap(wrap_none()).max_unit_bytes(0);  // it is gathered and released as a whole
  const ShardedModel sharded = shard_along_one_axis(block, ranks.comm(), together, Notice::kCalls);
  for (const ShardedModel& inner : sharded_blocks_of(*block)) inner.state()->take_turns_with(sharded.state());
  return sharded;
}

double FsdpStatistics::local_sharding_ratio() const {
  return full_bytes == 0 ? 1 : static_cast<double>(shard_bytes) / static_cast<double>(full_bytes);
}

ShardedModel::ShardedModel(std::shared_ptr<FsdpState> state) : ParallelModel(state), state_(std::move(state)) {}

void ShardedModel::set_micro_batch(std::int64_t index) const { state_->set_micro_batch(index); }

FsdpStatistics ShardedModel::statistics() const { return state_->statistics(); }

}  // namespace tessera
