#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <mutex>

#include "train/state/model_tensors.h"
#include "train/state/state_part.h"

namespace tessera::train {
namespace {

constexpr const char* kRandomPrefix = "random/rank/";

std::string name_of(int rank) { return kRandomPrefix + std::to_string(rank) + "/cpu"; }

std::uint64_t derived_seed(const at::Tensor& state_of_rank_0, int rank) {
  at::Generator copy = at::detail::createCPUGenerator();
  copy.set_state(state_of_rank_0);
  auto* const generator = at::check_generator<at::CPUGeneratorImpl>(copy);
  for (int i = 0; i < rank; ++i) generator->random64();
  return generator->random64();
}

class RandomPart : public StatePart {
 public:
  explicit RandomPart(int rank) : rank_(rank) {}

  void capture(RankState& into) const override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    into.slices.push_back(whole_slice(kTrainingGroup, name_of(rank_), state));
  }

  void plan(SavedNames& names) override {
    names.pass_over(kTrainingGroup, kRandomPrefix);
    const ManifestTensor* found = names.find_tensor(kTrainingGroup, name_of(0));
    if (!found) {
      names.note_missing(std::string(kTrainingGroup) + "/" + name_of(0));
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
    if (!state_.defined()) return;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::uint64_t seed = is_own_ ? 0 : derived_seed(state_, rank_);
    const std::lock_guard lock(generator.mutex());
    if (is_own_) {
      generator.set_state(state_);
    } else {
      generator.set_current_seed(seed);
      notes.push_back("the saved run had no rank " + std::to_string(rank_) +
                      ": the random numbers of this rank begin with a seed that was drawn from rank 0's state");
    }
    state_ = at::Tensor();
  }

 private:
  int rank_;
  bool is_own_ = false;
  std::string name_;
  at::Tensor state_;
};

}  // namespace

std::unique_ptr<StatePart> random_part(int rank) { return std::make_unique<RandomPart>(rank); }

}  // namespace tessera::train
