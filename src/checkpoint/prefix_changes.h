#pragma once

#include <tessera/checkpoint/interchange.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// Changes names, and knows which changes were of any use.
class PrefixChanger {
 public:
  explicit PrefixChanger(const PrefixChanges& changes) : changes_(changes), used_(changes.size(), false) {}

  std::string changed(std::string_view name);
  /// Throws ConfigError naming a prefix that no name began with: it is mistyped. `where` says whose names they are.
  void require_all_used(const std::string& where) const;

 private:
  PrefixChanges changes_;
  std::vector<bool> used_;
};

}  // namespace tessera::checkpoints
