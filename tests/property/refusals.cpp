#include "property/refusals.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <array>
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
      {"a step of the pipeline is asked for while gather()",
       [](const Action&, const Config& config, const Circumstances& now) {
         return config.has_stages() && now.is_whole;
       }},
      // The rank that says why is judged by what it says.
      {"of the pipeline refuses what is asked for, and says why",
       [](const Action&, const Config& config, const Circumstances&) { return config.has_stages(); }},
      {"of which several stages compute parts of the gradient",
       [](const Action&, const Config& config, const Circumstances&) { return config.has_stages(); }},
      {"the forward asks whether two tensors of stage",
       [](const Action&, const Config& config, const Circumstances&) { return config.has_stages(); }},
      {"on another rank than this one",
       [](const Action& action, const Config& config, const Circumstances&) {
         return config.pp > 1 && is_one_of(action, {"call_by_hand", "load_saved", "reload_optimizer"});
       }},
      {"lies in a file",
       [](const Action&, const Config& config, const Circumstances&) { return !config.in_files.empty(); }},
      {"are in shards at this point",
       [](const Action& action, const Config&, const Circumstances&) {
         return is_one_of(action, {"read", "evaluate_on_a_thread"});
       }},
      // LibTorch's words for a tensor of whose bytes a rank has only a part: pointers, prints, torch::save().
      {"Cannot access storage of ",
       [](const Action& action, const Config& config, const Circumstances&) {
         return (config.tp > 1 || config.pp > 1) && is_one_of(action, {"read", "reload_optimizer"});
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

constexpr std::array kRefusedCuts{"the loss is a value of stage",
                                  "that no parameter has part in",
                                  "reads it when other micro-batches",
                                  "place it there",
                                  "requires a gradient and is none",
                                  "to a tensor that every rank has",
                                  "write to a copy",
                                  "reads values that a stage",
                                  "layers for a pipeline of",
                                  "dynamic(true)"};

}  // namespace

bool is_refused_cut(const std::string& text) {
  return std::ranges::any_of(kRefusedCuts, [&](const char* words) { return text.find(words) != std::string::npos; });
}

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
  // Another batch may take another way through the model.
  if (config.has_stages() && is_refused_cut(text)) {
    const bool is_asked_for = config.pipeline.dynamic() && text.find("dynamic(true)") != std::string::npos;
    const bool runs_it = action.kind.find("_stages") != std::string::npos || is_one_of(action, {"load_saved", "cast"});
    return runs_it && !is_asked_for ? "" : "refuses what the guide allows";
  }
  for (const Refusal& refusal : refusals()) {
    if (text.find(refusal.words) == std::string::npos) continue;
    return refusal.may_be(action, config, circumstances) ? "" : "refuses what the guide allows";
  }
  return "refuses in words that no guide has";
}

}  // namespace tessera::testing
