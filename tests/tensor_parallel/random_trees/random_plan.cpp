#include "tensor_parallel/random_trees/random_plan.h"

#include <tessera/core/error.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "fsdp/random_models/dice.h"

namespace tessera::testing {
namespace {

/// A parameter under one of its names.
struct Candidate {
  std::string name;
  std::string module;  ///< that holds it
  at::Tensor tensor;
  bool of_embedding;
  bool of_attention;
  bool may_be_cut;
};

std::vector<Candidate> candidates_of(const Node& model, bool cuts_buffers) {
  std::vector<Candidate> found;
  for (const auto& item : model.named_modules("", false)) {
    const auto* const module = item.value().get();
    const bool may_be_cut = cuts_buffers || module->named_buffers(false).is_empty();
    for (const auto& parameter : module->named_parameters(false)) {
      if (!parameter.value().defined()) continue;
      found.push_back({item.key() + "." + parameter.key(), item.key(), parameter.value(),
                       dynamic_cast<const torch::nn::EmbeddingImpl*>(module) != nullptr,
                       dynamic_cast<const torch::nn::MultiheadAttentionImpl*>(module) != nullptr, may_be_cut});
    }
  }
  return found;
}

bool fits_pattern(const std::string& pattern, const std::string& name) {
  std::string expression;
  for (const char c : pattern) expression += c == '*' ? "[^.]*" : c == '.' ? "\\." : std::string(1, c);
  return std::regex_match(name, std::regex(expression));
}

class Planner {
 public:
  Planner(const Node& model, std::uint64_t seed, bool cuts_buffers)
      : dice_(seed + 3'000'003), candidates_(candidates_of(model, cuts_buffers)) {}

  TensorPlan plan() {
    const int percent = dice_.pick(std::vector<int>{15, 50, 80});
    for (const Candidate& candidate : candidates_) {
      if (!dice_.chance(percent) || !candidate.may_be_cut) continue;
      propose(random_pattern(candidate), random_split(candidate));
    }
    for (auto last = candidates_.rbegin(); placements_.empty(); ++last) propose(last->name, split_columns());
    return plan_;
  }

 private:
  std::string random_pattern(const Candidate& candidate) {
    std::string pattern = dice_.chance(60) ? candidate.module : candidate.name;
    if (!dice_.chance(30)) return pattern;
    // One of the names between the dots, or the end of one, becomes a star.
    const auto begin = static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(pattern.size())));
    const auto end = std::min(pattern.find('.', begin), pattern.size());
    return end == begin ? pattern : pattern.replace(begin, end - begin, "*");
  }

  TensorSplit random_split(const Candidate& candidate) {
    if (candidate.of_attention && dice_.chance(60)) return split_heads(2).packed(3);
    if (candidate.of_embedding && dice_.chance(60)) return split_vocabulary();
    TensorSplit split = dice_.pick(
        std::vector<TensorSplit>{split_columns(), split_columns(), split_rows(), split_rows(), split_vocabulary()});
    if (dice_.chance(25)) split = split.heads(1 + dice_.below(4));
    if (dice_.chance(20)) split = split.packed(2 + dice_.below(2));
    return dice_.chance(15) ? split.transposed() : split;
  }

  /// Adds a line unless the library must refuse it.
  void propose(const std::string& pattern, const TensorSplit& split) {
    std::map<const c10::TensorImpl*, Placement> added;
    for (const Candidate& candidate : candidates_) {
      if (!fits_pattern(pattern, candidate.module) && !fits_pattern(pattern, candidate.name)) continue;
      if (!candidate.may_be_cut) return;
      std::optional<Placement> placement;
      try {
        placement = split.placement(candidate.tensor.sizes().vec(), candidate.of_embedding);
      } catch (const ConfigError&) {
        return;
      }
      if (!placement) continue;
      const c10::TensorImpl* const tensor = candidate.tensor.unsafeGetTensorImpl();
      if (const auto known = placements_.find(tensor); known != placements_.end() && known->second != *placement)
        return;
      if (const auto [place, is_new] = added.emplace(tensor, *placement); !is_new && place->second != *placement)
        return;
    }
    placements_.insert(added.begin(), added.end());
    plan_.add(pattern, split);
  }

  Dice dice_;
  std::vector<Candidate> candidates_;
  std::map<const c10::TensorImpl*, Placement> placements_;
  TensorPlan plan_;
};

}  // namespace

TensorPlan make_random_plan(const Node& model, std::uint64_t seed, bool cuts_buffers) {
  return Planner(model, seed, cuts_buffers).plan();
}

}  // namespace tessera::testing
