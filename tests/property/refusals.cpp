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

/// What the guides say is refused.
const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {"are in shards at this point",
       [](const Action& action, const Config&, const Circumstances&) {
         return is_one_of(action, {"read", "evaluate_on_a_thread"});
       }},
      // LibTorch's words for a tensor of whose bytes a rank has only a part: pointers, prints, torch::save().
      {"Cannot access storage of ",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.tp > 1 && is_one_of(action, {"read", "reload_optimizer"});
       }},
      {"Cannot access data pointer of Tensor",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.tp > 1 && is_one_of(action, {"read"});
       }},
      {"a model whole that tensor parallelism cuts",
       [](const Action&, const Config& config, const Circumstances& now) { return config.tp > 1 && now.is_whole; }},
      {"that was made while gather() held it whole",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.tp > 1 && is_one_of(action, {"use_a_view"});
       }},
      {"a view of a tensor that was gathered from all ranks",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.tp > 1 && is_one_of(action, {"write", "use_a_view"});
       }},
      {"were cleared by model->zero_grad()",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"step"}); }},
      {"held whole",
       [](const Action& action, const Config&, const Circumstances& now) {
         return now.is_whole && is_one_of(action, {"step", "load", "step_with_scaler", "load_checkpoint"});
       }},
      {"has no type for tensors of Complex",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.oddity == "complex" && is_one_of(action, {"save_checkpoint"});
       }},
      {"while gather() holds it",
       [](const Action& action, const Config&, const Circumstances& now) {
         return now.is_whole && is_one_of(action, {"save_checkpoint", "load_checkpoint"});
       }},
      {"is none of the model's",
       [](const Action& action, const Config&, const Circumstances& now) {
         return now.flags_changed && is_one_of(action, {"save_checkpoint", "load_checkpoint"});
       }},
      {"is not that of this program",
       [](const Action& action, const Config&, const Circumstances& now) {
         return now.flags_changed && is_one_of(action, {"load_checkpoint"});
       }},
      {"was frozen after fully_shard()",
       [](const Action&, const Config& config, const Circumstances& now) {
         return now.flags_changed && !config.fsdp.use_orig_params();
       }},
      {"is to be trained since fully_shard()",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"frozen or unfrozen after their forward had begun",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"forward was not seen",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"must be called between steps",
       [](const Action& action, const Config&, const Circumstances&) {
         return is_one_of(action, {"resize_buckets", "train_uneven", "load_checkpoint"});
       }},
      {"was given other memory",
       [](const Action&, const Config& config, const Circumstances& now) { return config.is_fsdp() && now.has_moved; }},
      {"with static_graph(true) one backward pass has all gradients",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"train_promised"}); }},
      {"reproducible mode ",
       [](const Action&, const Config& config, const Circumstances&) { return config.is_reproducible(); }},
      {"no parameter that requires a gradient",
       [](const Action&, const Config&, const Circumstances& now) { return now.flags_changed; }},
      {"has max_norm",
       [](const Action&, const Config& config, const Circumstances&) { return config.oddity == "max_norm"; }},
      {"makes sparse gradients", [](const Action&, const Config& config,
                                    const Circumstances&) { return config.is_fsdp() && config.oddity == "sparse"; }},
      {"is complex", [](const Action&, const Config& config,
                        const Circumstances&) { return config.is_fsdp() && config.oddity == "complex"; }},
      {" share memory", [](const Action&, const Config& config,
                           const Circumstances&) { return config.is_fsdp() && config.oddity == "aliases"; }},
      {"is in use by",
       [](const Action&, const Config& config, const Circumstances&) {
         return config.is_fsdp() && (config.oddity == "view" || config.keeps_views);
       }},
      {"the gradients of",
       [](const Action& action, const Config&, const Circumstances&) { return is_one_of(action, {"zero_grad"}); }},
  };
  return all;
}

}  // namespace

bool is_refusal(const std::exception& error) {
  const std::string text = error.what();
  for (const Refusal& refusal : refusals()) {
    if (text.find(refusal.words) != std::string::npos) return true;
  }
  if (dynamic_cast<const CommError*>(&error)) return false;  // nobody refused: somebody waited
  if (dynamic_cast<const Error*>(&error)) return true;
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
