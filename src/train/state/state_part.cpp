#include "train/state/state_part.h"

#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/digest.h>
#include <tessera/data_parallel/gradient_hook.h>
#include <tessera/intercept/random_state.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "train/state/saved_names.h"

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

namespace {

constexpr const char* kTensor = "ddp/buckets";
constexpr const char* kSize = "ddp/bucket_bytes";

using Buckets = DistributedModel::Buckets;

at::Tensor to_tensor(const Buckets& buckets) {
  std::vector<std::int64_t> rows;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const std::int64_t parameter : buckets[b]) {
      rows.push_back(static_cast<std::int64_t>(b));
      rows.push_back(parameter);
    }
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size() / 2);
  return at::from_blob(rows.data(), {num_rows, 2}, at::kLong).clone();
}

/// Does not check the content: set_buckets() does.
Buckets from_tensor(const at::Tensor& tensor) {
  Buckets buckets;
  std::int64_t last = -1;
  const auto* row = tensor.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tensor.size(0); ++i, row += 2) {
    if (i == 0 || row[0] != last) buckets.emplace_back();
    last = row[0];
    buckets.back().push_back(row[1]);
  }
  return buckets;
}

class BucketsPart : public StatePart {
 public:
  BucketsPart(const DistributedModel& model, int rank, int num_ranks) : model_(model), hook_(model, rank, num_ranks) {}

  void capture(RankState& into) const override {
    // Each stage of a pipeline has buckets of its own, and a run with other stages would have no use for them.
    const Buckets buckets = model_.model_state()->has_stages() ? Buckets() : model_.buckets();
    hook_.capture(buckets, into);
    if (buckets.empty()) return;
    const at::Tensor tensor = to_tensor(buckets);
    into.slices.push_back(whole_slice(kTrainingGroup, kTensor, tensor));
    into.values[kSize] = model_.bucket_bytes();
  }

  void plan(SavedNames& names) override {
    tensor_ = at::Tensor();
    why_not_.clear();
    plan_buckets(names);
    hook_.plan(names, tensor_.defined());
  }

  std::vector<HeldSlice> prepare() override {
    std::vector<HeldSlice> slices = hook_.prepare();
    if (!tensor_.defined()) return slices;
    slices.push_back(whole_slice(kTrainingGroup, kTensor, tensor_));
    return slices;
  }

  void finish(std::vector<std::string>& notes) override {
    const Buckets buckets = tensor_.defined() ? from_tensor(tensor_) : Buckets();
    tensor_ = at::Tensor();
    if (!why_not_.empty()) {
      notes.push_back("the buckets of gradients are not those of the saved run, because " + why_not_ +
                      ": on three ranks and more sums are rounded differently");
    }
    if (!buckets.empty()) model_.set_buckets(buckets);
    hook_.finish(buckets, notes);
  }

 private:
  void plan_buckets(SavedNames& names) {
    const ManifestTensor* const found = names.find_tensor(kTrainingGroup, kTensor);
    if (!found || model_.bucket_bytes() == 0) return;
    const auto num_parameters = static_cast<std::int64_t>(model_.averaged_parameters().size());
    if (found->shape != std::vector<std::int64_t>{num_parameters, 2}) {
      why_not_ = "other parameters are trained";
    } else if (names.take_value<std::int64_t>(kSize) != model_.bucket_bytes()) {
      why_not_ = "another size of buckets is asked for";
    } else {
      tensor_ = at::zeros(found->shape, at::kLong);
    }
  }

  DistributedModel model_;
  HookMemory hook_;
  at::Tensor tensor_;
  std::string why_not_;
};

}  // namespace

std::unique_ptr<StatePart> buckets_part(const DistributedModel& model, int rank, int num_ranks) {
  return std::make_unique<BucketsPart>(model, rank, num_ranks);
}

namespace {

constexpr const char* kRandomPrefix = "random/rank/";

/// What a rank that the saved run did not have begins with.
std::uint64_t derived_seed(const at::Tensor& state_of_rank_0, int rank) {
  at::Generator copy = at::detail::createCPUGenerator();
  copy.set_state(state_of_rank_0);
  auto* const generator = at::check_generator<at::CPUGeneratorImpl>(copy);
  for (int i = 0; i < rank; ++i) generator->random64();
  return generator->random64();
}

/// States of accelerators' generators are bytes of their own kinds.
std::uint64_t seed_from_bytes(const at::Tensor& state_of_rank_0, int rank) {
  const std::string_view bytes(static_cast<const char*>(state_of_rank_0.const_data_ptr()), state_of_rank_0.nbytes());
  return Digest().add(bytes).add(static_cast<std::uint64_t>(rank)).value();
}

/// The default generator of the CPU, or of the thread's current accelerator.
class RandomPart : public StatePart {
 public:
  RandomPart(int rank, bool of_accelerator) : rank_(rank), of_accelerator_(of_accelerator) {}

  void capture(RankState& into) const override {
    std::optional<at::Generator> generator = default_generator();
    if (!generator) return;
    const std::lock_guard lock(generator->mutex());
    const at::Tensor state = generator->get_state();
    into.slices.push_back(whole_slice(kTrainingGroup, name_of(rank_), state));
  }

  void plan(SavedNames& names) override {
    names.pass_over(kTrainingGroup, kRandomPrefix);
    has_none_ = false;
    if (of_accelerator_ && !default_generator()) return;
    const ManifestTensor* found = names.find_tensor(kTrainingGroup, name_of(0));
    if (!found) {
      // A run on the CPU may go on with an accelerator.
      has_none_ = of_accelerator_;
      if (!of_accelerator_) names.note_missing(std::string(kTrainingGroup) + "/" + name_of(0));
      return;
    }
    const ManifestTensor* const own = names.find_tensor(kTrainingGroup, name_of(rank_));
    is_own_ = own != nullptr;
    if (own) found = own;
    name_ = found->name;
    state_ = at::zeros(found->shape, at::kByte);
  }

  std::vector<HeldSlice> prepare() override {
    if (!state_.defined()) return {};
    return {whole_slice(kTrainingGroup, name_, state_)};
  }

  void finish(std::vector<std::string>& notes) override {
    if (has_none_) {
      notes.push_back("the saved run had no random numbers of " + kind() + ": those of rank " + std::to_string(rank_) +
                      " go on from where they are");
    }
    if (!state_.defined()) return;
    at::Generator generator = *default_generator();
    const std::lock_guard lock(generator.mutex());
    if (is_own_) {
      generator.set_state(state_);
    } else {
      generator.set_current_seed(of_accelerator_ ? seed_from_bytes(state_, rank_) : derived_seed(state_, rank_));
      notes.push_back("the saved run had no rank " + std::to_string(rank_) + ": the random numbers of this rank" +
                      (of_accelerator_ ? " on " + kind() : "") +
                      " begin with a seed that was drawn from rank 0's state");
    }
    state_ = at::Tensor();
  }

 private:
  /// "cpu", "cuda"
  std::string kind() const {
    const auto type = of_accelerator_ ? at::accelerator::getAccelerator() : std::nullopt;
    return c10::DeviceTypeName(type.value_or(at::kCPU), /*lower_case=*/true);
  }
  std::string name_of(int rank) const { return kRandomPrefix + std::to_string(rank) + "/" + kind(); }
  std::optional<at::Generator> default_generator() const {
    if (!of_accelerator_) return at::detail::getDefaultCPUGenerator();
    const auto device = intercept::accelerator_in_use();
    return device ? std::optional(at::globalContext().defaultGenerator(*device)) : std::nullopt;
  }

  int rank_;
  bool of_accelerator_;
  bool is_own_ = false;
  bool has_none_ = false;
  std::string name_;
  at::Tensor state_;
};

}  // namespace

std::unique_ptr<StatePart> random_part(int rank) { return std::make_unique<RandomPart>(rank, false); }
std::unique_ptr<StatePart> accelerator_random_part(int rank) { return std::make_unique<RandomPart>(rank, true); }

namespace {

constexpr const char* kSamplerPrefix = "sampler/";

class SamplerPart : public StatePart {
 public:
  SamplerPart(std::function<SamplerState()> get, std::function<void(const SamplerState&)> set)
      : get_(std::move(get)), set_(std::move(set)) {}

  void capture(RankState& into) const override {
    for (const auto& [key, value] : get_().to_values()) into.values[kSamplerPrefix + key] = value;
  }

  void plan(SavedNames& names) override {
    planned_.clear();
    is_complete_ = true;
    for (const auto& [key, unused] : SamplerState().to_values()) {
      const auto value = names.take_value<std::int64_t>(kSamplerPrefix + key);
      is_complete_ = is_complete_ && value;
      if (value) planned_[key] = *value;
    }
  }

  void finish(std::vector<std::string>& /*notes*/) override {
    if (is_complete_) set_(SamplerState::from_values(planned_));
  }

 private:
  std::function<SamplerState()> get_;
  std::function<void(const SamplerState&)> set_;
  std::map<std::string, std::int64_t> planned_;
  bool is_complete_ = false;
};

}  // namespace

std::unique_ptr<StatePart> sampler_part(std::function<SamplerState()> get,
                                        std::function<void(const SamplerState&)> set) {
  return std::make_unique<SamplerPart>(std::move(get), std::move(set));
}

}  // namespace tessera::train
