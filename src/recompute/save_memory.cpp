#include <tessera/core/error.h>
#include <tessera/recompute/memory_strategy.h>
#include <tessera/recompute/save_memory.h>
#include <tessera/shard/layer_names.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "recompute/memory/recorder.h"

namespace tessera {
namespace {

using recomputation::Recorder;
using recomputation::SavedModel;

bool fits(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*')
    return !name.empty() && name.front() == pattern.front() && fits(pattern.substr(1), name.substr(1));
  for (std::size_t taken = 0;; ++taken) {
    if (fits(pattern.substr(1), name.substr(taken))) return true;
    if (taken == name.size() || name[taken] == '.') return false;
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (text.size() > 400) return text + ", ...";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

/// Names of the modules that are computed again as one.
std::vector<std::string> chosen_modules(const torch::nn::Module& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) {
    auto layers = layer_names(model);
    if (!layers.empty()) return layers;
    throw ConfigError(
        "save_memory: the model has no ModuleList and no Sequential whose elements could be computed again one by one: "
        "name its layers by SaveMemoryOptions().modules({...})");
  }
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) names.push_back(item.key());
  std::vector<std::string> chosen;
  for (const std::string& pattern : patterns) {
    const std::size_t before = chosen.size();
    std::ranges::copy_if(names, std::back_inserter(chosen),
                         [&](const std::string& name) { return fits(pattern, name); });
    if (chosen.size() > before) continue;
    throw ConfigError("save_memory: no module has the name \"" + pattern + "\". The model has " + listed(names));
  }
  return chosen;
}

bool lies_in(std::string_view name, const std::string& module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

std::shared_ptr<SavedModel> described(const torch::nn::Module& model, const SaveMemoryOptions& options) {
  auto saved = std::make_shared<SavedModel>();
  saved->whole_parts = options.strategy() == "aggressive";
  if (saved->whole_parts) saved->parts = chosen_modules(model, options.modules());
  const auto add = [&saved](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    // The largest module that has it.
    int part = -1;
    for (std::size_t i = 0; i < saved->parts.size(); ++i) {
      const bool is_larger = part < 0 || saved->parts[i].size() < saved->parts[static_cast<std::size_t>(part)].size();
      if (lies_in(name, saved->parts[i]) && is_larger) part = static_cast<int>(i);
    }
    saved->members.push_back({recomputation::weak(tensor), part});
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  const bool has_parts = std::ranges::any_of(saved->members, [](const auto& one) { return one.part >= 0; });
  if (saved->whole_parts && !has_parts) {
    throw ConfigError("save_memory: the modules " + listed(saved->parts) +
                      " have no parameters, by which their operators would be known");
  }
  return saved;
}

}  // namespace

const FieldList<SaveMemoryOptions>& SaveMemoryOptions::fields() {
  static const auto kList = FieldList<SaveMemoryOptions>("save_memory")
                                .add("strategy", &SaveMemoryOptions::strategy_,
                                     "What is computed again in backward: basic (nothing), standard, aggressive.")
                                .add("modules", &SaveMemoryOptions::modules_,
                                     "For aggressive: modules that are computed again as one; * fits all but a dot.");
  return kList;
}

MemorySaving save_memory(const std::shared_ptr<torch::nn::Module>& model, const SaveMemoryOptions& options) {
  if (!model) throw ConfigError("save_memory: there is no model, the pointer is null");
  const std::string& strategy = options.strategy();
  if (strategy == "extreme") {
    throw ConfigError(
        "save_memory: the strategy \"extreme\" needs activations that are moved to the host or to a disk, which this "
        "version does not do: choose \"aggressive\"");
  }
  if (strategy != "basic" && strategy != "standard" && strategy != "aggressive") {
    throw ConfigError("save_memory: there is no strategy \"" + strategy +
                      "\": choose \"basic\", \"standard\" or \"aggressive\"");
  }
  if (strategy != "aggressive" && !options.modules().empty()) {
    throw ConfigError("save_memory: modules are for the strategy \"aggressive\", and it is \"" + strategy +
                      "\": leave them out, or choose that one");
  }
  if (strategy == "basic") return {};
  auto saved = described(*model, options);
  Recorder::of_process().add(saved);
  return MemorySaving(std::move(saved));
}

MemorySaving save_memory(const std::shared_ptr<torch::nn::Module>& model, MemoryStrategy strategy) {
  const auto name = [strategy] {
    switch (strategy) {
      case MemoryStrategy::kBasic:
        return "basic";
      case MemoryStrategy::kStandard:
        return "standard";
      case MemoryStrategy::kAggressive:
        return "aggressive";
      case MemoryStrategy::kExtreme:
        return "extreme";
    }
    return "";
  };
  return save_memory(model, SaveMemoryOptions().strategy(name()));
}

MemorySaving::MemorySaving(std::shared_ptr<recomputation::SavedModel> model) : model_(std::move(model)) {}
MemorySaving::~MemorySaving() { end(); }
MemorySaving::MemorySaving(MemorySaving&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
MemorySaving& MemorySaving::operator=(MemorySaving&& other) noexcept {
  if (this == &other) return *this;
  end();
  model_ = std::exchange(other.model_, nullptr);
  return *this;
}

void MemorySaving::end() noexcept {
  if (model_) Recorder::of_process().remove(*model_);
  model_ = nullptr;
}

SavedMemoryReport MemorySaving::report() const {
  if (!model_) return {};
  const auto counts = model_->tally->counts();
  return {counts.kept_bytes, counts.num_kept, counts.num_dropped, counts.num_again};
}

std::vector<std::string> MemorySaving::modules() const { return model_ ? model_->parts : std::vector<std::string>(); }

}  // namespace tessera
