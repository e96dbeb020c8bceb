#include "train/state/hook_memory.h"

#include <tessera/checkpoint/safetensors.h>
#include <tessera/data_parallel/gradient_hook.h>

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "train/state/model_tensors.h"

namespace tessera::train {
namespace {

constexpr const char* kName = "ddp/hook/name";
constexpr const char* kNumRanks = "ddp/hook/num_ranks";
constexpr const char* kRanksOfModel = "ddp/hook/ranks_of_model";

}  // namespace

HookMemory::HookMemory(DistributedModel model, int rank, int num_ranks)
    : model_(std::move(model)), rank_(rank), num_ranks_(num_ranks) {}

std::string HookMemory::prefix() const { return "ddp/hook/rank/" + std::to_string(rank_) + "/bucket/"; }
std::string HookMemory::prefix_of(std::size_t bucket) const { return prefix() + std::to_string(bucket) + "/"; }

std::vector<BucketMemory> HookMemory::buckets_of(const Buckets& buckets) const {
  std::vector<BucketMemory> memories;
  const auto averaged = model_.averaged_parameters();
  for (const auto& bucket : buckets) {
    auto& memory = memories.emplace_back();
    for (const std::int64_t parameter : bucket) {
      memory.parameters.push_back(averaged.at(static_cast<std::size_t>(parameter)).second);
    }
  }
  return memories;
}

void HookMemory::capture(const Buckets& buckets, RankState& into) const {
  std::vector<BucketMemory> memories = buckets_of(buckets);
  if (!model_.hook().keeps_state() || !model_.hook().save_memory(memories)) return;
  into.values[kName] = model_.hook().name();
  into.values[kNumRanks] = std::int64_t{num_ranks_};
  into.values[kRanksOfModel] = std::int64_t{model_.comm().size()};
  for (std::size_t b = 0; b < memories.size(); ++b) {
    for (const auto& [name, tensor] : memories[b].tensors) {
      into.slices.push_back(whole_slice(kTrainingGroup, prefix_of(b) + name, tensor));
    }
  }
}

std::string HookMemory::why_not(const SavedNames& names) const {
  const auto is = [&](const char* name, const ManifestValue& here) {
    const ManifestValue* const there = names.find_value(name);
    return there && *there == here;
  };
  if (!names.find_value(kName)) return "the checkpoint has nothing of it";
  if (!is(kName, model_.hook().name())) return "the saved run had another hook";
  if (!is(kNumRanks, std::int64_t{num_ranks_}) || !is(kRanksOfModel, std::int64_t{model_.comm().size()})) {
    return "the number of ranks is another one, and each of them remembers what its own gradients lost";
  }
  return "";
}

void HookMemory::plan(const SavedNames& names, bool takes_buckets) {
  slices_.clear();
  why_not_.clear();
  if (!model_.hook().keeps_state()) return;
  why_not_ = why_not(names);
  const auto tensors = names.find_tensors(kTrainingGroup, prefix());
  if (why_not_.empty() && !takes_buckets && !tensors.empty()) why_not_ = "the buckets of gradients are others";
  if (!why_not_.empty()) return;
  for (const ManifestTensor* const found : tensors) {
    slices_.push_back(whole_slice(kTrainingGroup, found->name, at::zeros(found->shape, to_scalar_type(found->dtype))));
  }
}

void HookMemory::finish(const Buckets& buckets, std::vector<std::string>& notes) {
  GradientHook& hook = model_.hook();
  if (!hook.keeps_state()) return;
  std::vector<BucketMemory> memories = why_not_.empty() ? buckets_of(buckets) : std::vector<BucketMemory>();
  for (std::size_t b = 0; b < memories.size(); ++b) {
    const std::string prefix = prefix_of(b);
    for (const HeldSlice& slice : slices_) {
      if (slice.name.starts_with(prefix)) memories[b].tensors[slice.name.substr(prefix.size())] = slice.values;
    }
  }
  slices_.clear();
  const std::string why_not = hook.load_memory(memories);
  if (why_not_.empty()) why_not_ = why_not;
  if (why_not_.empty()) return;
  notes.push_back("the gradient hook \"" + hook.name() +
                  "\" begins without what it remembered in the saved run: " + why_not_);
}

}  // namespace tessera::train
