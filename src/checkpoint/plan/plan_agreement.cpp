#include "checkpoint/plan/plan_agreement.h"

#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace tessera::checkpoints {
namespace {

SliceDescription described(const HeldSlice& slice) {
  if (!slice.values.defined() || slice.values.numel() != slice.slice.num_elements() || !slice.values.is_contiguous()) {
    throw ConfigError("tensor \"" + slice.name + "\" of \"" + slice.group +
                      "\": a slice needs contiguous values, as many as it has elements (" +
                      std::to_string(slice.slice.num_elements()) + ")");
  }
  return {slice.group, slice.name, to_stored_dtype(slice.values.scalar_type()), slice.slice};
}

/// Values travel as a manifest that has nothing else.
std::string to_text(const std::map<std::string, ManifestValue>& values) {
  Manifest manifest;
  manifest.values = values;
  return manifest.to_json();
}

std::map<std::string, ManifestValue> merged(const std::vector<std::string>& texts) {
  std::map<std::string, ManifestValue> all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const auto& [name, value] :
         Manifest::parse(texts[rank], "the values of rank " + std::to_string(rank)).values) {
      const auto [place, added] = all.emplace(name, value);
      if (added || place->second == value) continue;
      throw ConfigError("the value \"" + name + "\" of the checkpoint is another on rank " + std::to_string(rank) +
                        " than on a rank before it; give each rank's own value a name of its own");
    }
  }
  return all;
}

/// What a rank sends to the others first.
struct Announcement {
  std::string fingerprint;  // of its slices
  std::string fault;        // what is wrong with them; if a rank only threw, the others would wait for it
  std::string values;

  std::string to_text() const { return fingerprint + "\n" + fault + "\n" + values; }
  static Announcement parse(const std::string& text) {
    const std::size_t first = text.find('\n');
    const std::size_t second = text.find('\n', first + 1);
    return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
  }
};

Announcement announcement_of(const RankState& state, std::string& slices) {
  Announcement announced;
  announced.values = to_text(state.values);
  try {
    std::vector<SliceDescription> list;
    for (const HeldSlice& slice : state.slices) list.push_back(described(slice));
    slices = checkpoints::to_text(list);
    announced.fingerprint = root_checksum_of(slices);
  } catch (const ConfigError& error) {
    announced.fault = error.what();
    std::replace(announced.fault.begin(), announced.fault.end(), '\n', ' ');
  }
  return announced;
}

}  // namespace

PlanAgreement::PlanAgreement(Communicator comm, std::uint64_t max_file_bytes)
    : comm_(std::move(comm)), max_file_bytes_(max_file_bytes) {}

AgreedSave PlanAgreement::agree(const RankState& state) {
  std::string slices;
  const Announcement mine = announcement_of(state, slices);
  std::vector<std::string> fingerprints;
  std::vector<std::string> values;
  for (const std::string& text : all_gather_texts(comm_, mine.to_text())) {
    Announcement announced = Announcement::parse(text);
    if (!announced.fault.empty()) throw ConfigError("rank " + std::to_string(values.size()) + ": " + announced.fault);
    fingerprints.push_back(std::move(announced.fingerprint));
    values.push_back(std::move(announced.values));
  }
  if (fingerprints != fingerprints_) {
    make_plan(slices);
    fingerprints_ = std::move(fingerprints);
  }
  return {plan_, copy_layout_, merged(values)};
}

/// Collective. `slices`: of this rank.
void PlanAgreement::make_plan(const std::string& slices) {
  std::vector<std::vector<SliceDescription>> of_ranks;
  for (const std::string& text : all_gather_texts(comm_, slices)) of_ranks.push_back(slices_from_text(text));
  auto plan = std::make_shared<const SavePlan>(SavePlan::make(of_ranks, max_file_bytes_));
  copy_layout_ = std::make_shared<const CopyLayout>(CopyLayout::of(*plan, comm_.rank()));
  plan_ = std::move(plan);
}

}  // namespace tessera::checkpoints
