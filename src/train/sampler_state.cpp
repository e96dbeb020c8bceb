#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <array>

namespace tessera {
namespace {

constexpr std::array<const char*, 6> kKeys = {"seed",        "epoch",    "consumed",
                                              "num_samples", "shuffled", "permutation_version"};

}  // namespace

SamplerState SamplerState::advanced(std::int64_t samples) const {
  if (samples < 0 || samples > num_samples - consumed) {
    throw ConfigError("the epoch has " + std::to_string(num_samples - consumed) +
                      " samples left; asked to advance by " + std::to_string(samples));
  }
  SamplerState state = *this;
  state.consumed += samples;
  return state;
}

std::map<std::string, std::int64_t> SamplerState::to_values() const {
  return {{"seed", seed},
          {"epoch", epoch},
          {"consumed", consumed},
          {"num_samples", num_samples},
          {"shuffled", shuffled ? 1 : 0},
          {"permutation_version", Permutation::kVersion}};
}

SamplerState SamplerState::from_values(const std::map<std::string, std::int64_t>& values) {
  std::string faults;
  for (const char* key : kKeys) {
    if (!values.contains(key)) faults += std::string("\n  ") + key + " is missing";
  }
  for (const auto& [key, value] : values) {
    bool known = false;
    for (const char* one : kKeys) known = known || key == one;
    if (!known) faults += "\n  " + key + " is no part of it";
  }
  if (!faults.empty()) throw ConfigError("the state of a sampler cannot be read:" + faults);

  const SamplerState state{values.at("seed"), values.at("epoch"), values.at("consumed"), values.at("num_samples"),
                           values.at("shuffled") != 0};
  const auto expect = [&](bool holds, const char* key, const std::string& expected) {
    if (holds) return;
    faults += std::string("\n  ") + key + " is " + std::to_string(values.at(key)) + "; expected " + expected;
  };
  expect(state.epoch >= 0, "epoch", "0 or more");
  expect(state.num_samples > 0, "num_samples", "1 or more");
  expect(state.consumed >= 0 && state.consumed <= state.num_samples, "consumed", "0 to num_samples");
  expect(values.at("shuffled") == 0 || values.at("shuffled") == 1, "shuffled", "0 or 1");
  expect(values.at("permutation_version") == Permutation::kVersion, "permutation_version",
         std::to_string(Permutation::kVersion) + ": another version of Tessera shuffled in another way");
  if (!faults.empty()) throw ConfigError("the state of a sampler cannot be read:" + faults);
  return state;
}

}  // namespace tessera
