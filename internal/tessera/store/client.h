#pragma once

#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::store {

/// A key did not appear in time. The connection remains usable.
class StoreTimeout : public CommError {
 public:
  using CommError::CommError;
};

/// The connection is lost because nothing arrived for too long: the server's process or host has stopped, or the
/// network between is cut. A server process that ended would have closed the connection.
class StoreSilent : public CommError {
 public:
  using CommError::CommError;
};

/// Nothing listened at the store's address in time.
class StoreNotReached : public CommError {
 public:
  using CommError::CommError;
};

/// As a timeout: none.
inline constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();

struct ClientOptions {
  /// How often an idle client sends a ping. Keep it a small part of the server's silence limit.
  std::chrono::milliseconds ping_interval{1000};
  /// A server that sends nothing for this long, though it is pinged every `ping_interval`, is regarded as dead.
  std::chrono::milliseconds silence_limit{5000};
};

class ClientConnection;

/// One process' connection to the store of its job. Keys and values are any bytes; together at most 64 MiB a call.
/// Every function throws CommError once the connection is lost. No function retries, so the store may or may not have
/// carried out a call that failed. Throws ConfigError for what the store refuses.
/// Thread-safety: all functions may be called from several threads; one that blocks does not hold up the others.
class StoreClient {
 public:
  /// Tries every few milliseconds until the store is reached. Blocks: at most `timeout`.
  /// Throws StoreNotReached when nothing listens there, and CommError at once when the process that listens there does
  /// not have the secret.
  static StoreClient connect(const std::string& address, int port, const Secret& secret,
                             std::chrono::milliseconds timeout, const ClientOptions& options = {});
  /// The same with a secret that may be found late or change. `secret` is called before each attempt. When the store
  /// refuses the secret, the client tries again, because the next one may be right.
  static StoreClient connect(const std::string& address, int port, const SecretSource& secret,
                             std::chrono::milliseconds timeout, const ClientOptions& options = {});

  /// Ends the connection; leases fire. Requires: no other thread is inside a function.
  ~StoreClient();
  StoreClient(StoreClient&& other) noexcept;
  StoreClient& operator=(StoreClient&& other) noexcept;

  void set(const std::string& key, const std::string& value);
  /// All at once: no client sees only a part of them.
  void multi_set(const std::vector<std::pair<std::string, std::string>>& entries);

  /// Blocks: until the key exists. Throws StoreTimeout after `timeout`, as the next two do; only a server that has
  /// stopped answering can make them take longer, by the silence limit.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// Blocks: until all keys have appeared.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  std::optional<std::string> try_get(const std::string& key);
  /// Whether all of them exist.
  bool check(const std::vector<std::string>& keys);

  /// Adds to a counter, which is 0 when the key does not exist, and is stored as decimal text. Returns the sum.
  std::int64_t add(const std::string& key, std::int64_t change);
  /// Sets the key to `desired` when its value is `expected`, or when it does not exist and `expected` is empty. Returns
  /// its value after that; `expected` when it does not exist.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  /// A key that does not exist is set.
  void append(const std::string& key, const std::string& suffix);

  /// Returns whether it existed.
  bool delete_key(const std::string& key);
  /// Returns how many there were.
  std::int64_t delete_prefix(const std::string& prefix);
  std::int64_t num_keys();

  /// When this connection ends, for whatever reason, the store sets `key` to `value`, so that clients that wait for the
  /// key are notified. A second lease of the same key replaces the first.
  void lease(const std::string& key, const std::string& value);
  /// Cancels a lease. Returns whether there was one.
  bool release(const std::string& key);

  /// Ends the connection; leases fire, and calls of other threads end with CommError.
  void close();

 private:
  explicit StoreClient(std::unique_ptr<ClientConnection> connection);

  std::unique_ptr<ClientConnection> connection_;
};

}  // namespace tessera::store
