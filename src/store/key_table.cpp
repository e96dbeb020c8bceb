#include "store/key_table.h"

#include <string_view>

namespace tessera::store {

const std::string* KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found != values_.end() ? &found->second : nullptr;
}

void KeyTable::set(const std::string& key, std::string value, std::vector<WaitId>& ready) {
  values_[key] = std::move(value);
  const auto waiting = waiting_.extract(key);
  if (waiting.empty()) return;
  for (const WaitId id : waiting.mapped()) {
    const auto wait = waits_.find(id);
    if (--wait->second.num_missing > 0) continue;
    waits_.erase(wait);
    ready.push_back(id);
  }
}

std::size_t KeyTable::erase_prefix(std::string_view prefix) {
  return std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

std::vector<std::string> KeyTable::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  std::unordered_set<std::string_view> seen;
  for (const std::string& key : keys) {
    if (!values_.contains(key) && seen.insert(key).second) result.push_back(key);
  }
  return result;
}

void KeyTable::wait(WaitId id, const std::vector<std::string>& missing) {
  waits_.emplace(id, Wait{missing, missing.size()});
  for (const std::string& key : missing) waiting_[key].insert(id);
}

std::vector<std::string> KeyTable::cancel(WaitId id) {
  const auto wait = waits_.find(id);
  if (wait == waits_.end()) return {};
  forget(id, wait->second);
  std::vector<std::string> lacking = missing(wait->second.keys);
  waits_.erase(wait);
  return lacking;
}

void KeyTable::cancel_all(ConnectionId connection) {
  auto wait = waits_.lower_bound(WaitId{connection, 0});
  while (wait != waits_.end() && wait->first.connection == connection) {
    forget(wait->first, wait->second);
    wait = waits_.erase(wait);
  }
}

void KeyTable::forget(WaitId id, const Wait& wait) {
  for (const std::string& key : wait.keys) {
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) continue;
    waiting->second.erase(id);
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
}

}  // namespace tessera::store
