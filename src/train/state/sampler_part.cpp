#include <cstdint>
#include <map>
#include <utility>

#include "train/state/state_part.h"

namespace tessera::train {
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
