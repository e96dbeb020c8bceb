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

#include "store/protocol.h"

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

/// Keys, their values, and the requests that wait for them. Requests that wait for other keys do not slow a set() down.
class KeyTable {
 public:
  using Values = std::unordered_map<std::string, std::string>;

  const Values& values() const { return values_; }
  /// Null when there is none.
  const std::string* find(const std::string& key) const;

  /// Ends the waits that lacked only this key, and adds them to `ready`.
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

/// Carries out the requests of the store, without any network: answers every request but a cancellation once, now or
/// when the keys that it waits for exist.
class RequestHandler {
 public:
  /// Called from inside handle() and disconnect(), for any connection; must not call back.
  using Answer = std::function<void(ConnectionId, Response)>;

  explicit RequestHandler(Answer answer) : answer_(std::move(answer)) {}

  void handle(ConnectionId connection, Request request);

  /// Drops the waits of the connection, and sets the keys of its leases.
  void disconnect(ConnectionId connection);

  bool has_lease(ConnectionId connection) const { return leases_.contains(connection); }

  const KeyTable& table() const { return table_; }

 private:
  /// The keys of each blocked request that will be answered with their values; other blocked requests are not listed.
  using Gets = std::map<WaitId, std::vector<std::string>>;

  void get(WaitId id, std::vector<std::string> keys);
  void wait(WaitId id, const std::vector<std::string>& keys);
  void add(WaitId id, const std::string& key, std::int64_t change);
  void compare_set(WaitId id, std::vector<std::string>& fields);
  void append(WaitId id, const std::string& key, const std::string& suffix);
  void set_all(std::vector<std::string>& pairs);
  void cancel(WaitId id);
  /// Whether there was such a lease.
  bool release(ConnectionId connection, const std::string& key);
  void answer_values(WaitId id, const std::vector<std::string>& keys);

  void set(const std::string& key, std::string value);
  void done(WaitId id, std::int64_t number = 0, std::vector<std::string> fields = {});
  void refuse(WaitId id, std::string why);

  Answer answer_;
  KeyTable table_;
  Gets gets_;
  std::unordered_map<ConnectionId, std::map<std::string, std::string>> leases_;
};

}  // namespace tessera::store
