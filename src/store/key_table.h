#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera::store {

using ConnectionId = std::uint64_t;

/// One blocked request.
struct WaitId {
  ConnectionId connection = 0;
  std::uint64_t request = 0;

  auto operator<=>(const WaitId&) const = default;
};

struct WaitIdHash {
  std::size_t operator()(const WaitId& id) const {
    return std::hash<std::uint64_t>()(id.connection * 0x9e3779b97f4a7c15U ^ id.request);
  }
};

/// Keys, their values, and who waits for them. Setting a key costs no more when others wait for other keys.
class KeyTable {
 public:
  using Values = std::unordered_map<std::string, std::string>;

  const Values& values() const { return values_; }
  /// Null when there is none.
  const std::string* find(const std::string& key) const;

  /// Those whose last key this was wait no longer and are added to `ready`.
  void set(const std::string& key, std::string value, std::vector<WaitId>& ready);
  /// Requires: the key exists.
  void append(const std::string& key, std::string_view suffix) { values_.at(key).append(suffix); }
  bool erase(const std::string& key) { return values_.erase(key) > 0; }
  std::size_t erase_prefix(std::string_view prefix);

  /// Of `keys`, those that do not exist, each once.
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;

  /// Requires: `missing` is not empty, its keys do not exist, and the request does not wait already.
  void wait(WaitId id, const std::vector<std::string>& missing);
  bool waits(WaitId id) const { return waits_.contains(id); }
  /// Ends a wait; returns the keys that it still lacked.
  std::vector<std::string> cancel(WaitId id);
  void cancel_all(ConnectionId connection);
  std::size_t num_waits() const { return waits_.size(); }
  std::size_t num_awaited_keys() const { return waiting_.size(); }

 private:
  struct Wait {
    std::vector<std::string> keys;
    std::size_t num_missing = 0;
  };

  void forget(WaitId id, const Wait& wait);

  Values values_;
  std::unordered_map<std::string, std::unordered_set<WaitId, WaitIdHash>> waiting_;
  std::map<WaitId, Wait> waits_;  // ordered: those of a connection lie side by side
};

}  // namespace tessera::store
