#include "checkpoint/prefix_changes.h"

#include <tessera/core/error.h>

#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {

std::string PrefixChanger::changed(std::string_view name) {
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    const auto& [old_start, new_start] = changes_[i];
    if (!name.starts_with(old_start)) continue;
    used_[i] = true;
    return new_start + std::string(name.substr(old_start.size()));
  }
  return std::string(name);
}

void PrefixChanger::require_all_used(const std::string& where) const {
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (used_[i]) continue;
    throw ConfigError("no tensor of " + where + " begins with " + shown(changes_[i].first) +
                      ", which was to be renamed; `tessera inspect checkpoint` lists the names of a step");
  }
}

}  // namespace tessera::checkpoints
