#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/key_table.h"
#include "store/protocol.h"

namespace tessera::store {

/// What the store does with a request, apart from all connections: every request but a cancellation is answered once,
/// now or when the keys that it waits for exist.
class RequestHandler {
 public:
  /// Called from inside handle() and disconnect(), for any connection; must not call back.
  using Answer = std::function<void(ConnectionId, Response)>;

  explicit RequestHandler(Answer answer) : answer_(std::move(answer)) {}

  void handle(ConnectionId connection, Request request);

  /// Forgets what the connection waits for, and sets the keys of its leases.
  void disconnect(ConnectionId connection);

  bool has_lease(ConnectionId connection) const { return leases_.contains(connection); }

  const KeyTable& table() const { return table_; }

 private:
  /// A blocked request that is answered with the values; those that need none are not listed.
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
