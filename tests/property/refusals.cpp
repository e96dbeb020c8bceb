#include "property/refusals.h"

#include <tessera/core/error.h>

#include <functional>
#include <vector>

namespace tessera::testing {
namespace {

struct Refusal {
  std::string words;
  std::function<bool(const Action&, const Config&, const Circumstances&)> may_be;
};

bool is_one_of(const Action& action, std::initializer_list<const char*> kinds) {
  for (const char* kind : kinds) {
    if (action.kind == kind) return true;
  }
  return false;
}

/// What the guides say is refused.
const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {"are in shards at this point",
       [](const Action& action, const Config&, const Circumstances&) {
         return is_one_of(action, {"read", "evaluate_on_a_thread"});
       }},
      {"were cleared by model->zero_grad()",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"step"}); }},
      {"held whole", [](const Action& action, const Config&,
                        const Circumstances& now) { return now.is_whole && is_one_of(action, {"step", "load"}); }},
      {"was frozen after fully_shard()",
       [](const Action&, const Config& config, const Circumstances& now) {
         return now.flags_changed && !config.fsdp.use_orig_params();
       }},
      {"is to be trained since fully_shard()",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"frozen or unfrozen after their forward had begun",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"a second backward pass ran after one forward",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"go_back_twice"}); }},
      {"distribute the model anew",
       [](const Action&, const Config&, const Circumstances& now) { return now.has_failed; }},
      {"must be called between steps",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"resize_buckets"}); }},
      {"no parameter that requires a gradient",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"the gradients of",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"zero_grad"}); }},
  };
  return all;
}

}  // namespace

bool is_refusal(const std::exception& error) {
  if (dynamic_cast<const CommError*>(&error)) return false;  // nobody refused: somebody waited
  if (dynamic_cast<const Error*>(&error)) return true;
  const std::string text = error.what();
  for (const Refusal& refusal : refusals()) {
    if (text.find(refusal.words) != std::string::npos) return true;
  }
  // An operator speaks for us, and what we say names the rank.
  return text.find(" (rank ") != std::string::npos;
}

std::string objection_to(const std::string& text, const Action& action, const Config& config,
                         const Circumstances& circumstances) {
  for (const Refusal& refusal : refusals()) {
    if (text.find(refusal.words) == std::string::npos) continue;
    return refusal.may_be(action, config, circumstances) ? "" : "refuses what the guide allows";
  }
  return "refuses in words that no guide has";
}

}  // namespace tessera::testing
