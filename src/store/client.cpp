#include <tessera/store/client.h>

#include <utility>

#include "store/client_connection.h"
#include "store/clocks.h"

namespace tessera::store {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kShownKeys = 3;

void require_valid(const ClientOptions& options) {
  if (options.ping_interval.count() > 0 && options.silence_limit >= 2 * options.ping_interval) return;
  throw ConfigError("the store's ping_interval must be larger than 0 and at most half of silence_limit; found " +
                    std::to_string(options.ping_interval.count()) + " ms and " +
                    std::to_string(options.silence_limit.count()) + " ms");
}

std::string listed(const std::vector<std::string>& keys) {
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kShownKeys; ++i) text += (i > 0 ? ", \"" : "\"") + keys[i] + "\"";
  if (keys.size() > kShownKeys) text += " and " + std::to_string(keys.size() - kShownKeys) + " more";
  return text;
}

Response ask(ClientConnection& connection, Operation operation, std::vector<std::string> fields,
             std::int64_t number = 0, milliseconds timeout = kForever) {
  Response response = connection.call(operation, number, std::move(fields), deadline_after(timeout));
  if (response.status == Status::kRefused) {
    throw ConfigError("the store at " + connection.place() + " refuses: " + response.fields[0]);
  }
  if (response.status == Status::kCancelled) {
    throw StoreTimeout("waited " + std::to_string(timeout.count()) + " ms at the store " + connection.place() +
                       " for keys that nobody set: " + listed(response.fields) +
                       "; look at the output of the process that should have");
  }
  return response;
}

}  // namespace

StoreClient::StoreClient(std::unique_ptr<ClientConnection> connection) : connection_(std::move(connection)) {}
StoreClient::~StoreClient() = default;
StoreClient::StoreClient(StoreClient&& other) noexcept = default;
StoreClient& StoreClient::operator=(StoreClient&& other) noexcept = default;

StoreClient StoreClient::connect(const std::string& address, int port, const Secret& secret, milliseconds timeout,
                                 const ClientOptions& options) {
  require_valid(options);
  auto connected = connect_to_store(address, port, [&secret] { return std::optional(secret); }, false, timeout);
  return StoreClient(
      std::make_unique<ClientConnection>(std::move(connected), address + ":" + std::to_string(port), options));
}

StoreClient StoreClient::connect(const std::string& address, int port, const SecretSource& secret, milliseconds timeout,
                                 const ClientOptions& options) {
  require_valid(options);
  auto connected = connect_to_store(address, port, secret, true, timeout);
  return StoreClient(
      std::make_unique<ClientConnection>(std::move(connected), address + ":" + std::to_string(port), options));
}

void StoreClient::set(const std::string& key, const std::string& value) {
  ask(*connection_, Operation::kSet, {key, value});
}

void StoreClient::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<std::string> fields;
  fields.reserve(2 * entries.size());
  for (const auto& [key, value] : entries) {
    fields.push_back(key);
    fields.push_back(value);
  }
  ask(*connection_, Operation::kMultiSet, std::move(fields));
}

std::string StoreClient::get(const std::string& key, milliseconds timeout) {
  return std::move(multi_get({key}, timeout)[0]);
}

std::vector<std::string> StoreClient::multi_get(const std::vector<std::string>& keys, milliseconds timeout) {
  auto values = ask(*connection_, Operation::kGet, keys, 0, timeout).fields;
  if (values.size() != keys.size()) throw InternalError("the store answered with another number of values than asked");
  return values;
}

void StoreClient::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  ask(*connection_, Operation::kWait, keys, 0, timeout);
}

std::optional<std::string> StoreClient::try_get(const std::string& key) {
  Response response = ask(*connection_, Operation::kTryGet, {key});
  if (response.fields.empty()) return std::nullopt;
  return std::move(response.fields[0]);
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  return ask(*connection_, Operation::kCheck, keys).number != 0;
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t change) {
  return ask(*connection_, Operation::kAdd, {key}, change).number;
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return std::move(ask(*connection_, Operation::kCompareSet, {key, expected, desired}).fields.at(0));
}

void StoreClient::append(const std::string& key, const std::string& suffix) {
  ask(*connection_, Operation::kAppend, {key, suffix});
}

bool StoreClient::delete_key(const std::string& key) {
  return ask(*connection_, Operation::kDeleteKey, {key}).number != 0;
}

std::int64_t StoreClient::delete_prefix(const std::string& prefix) {
  return ask(*connection_, Operation::kDeletePrefix, {prefix}).number;
}

std::int64_t StoreClient::num_keys() { return ask(*connection_, Operation::kNumKeys, {}).number; }

void StoreClient::lease(const std::string& key, const std::string& value) {
  ask(*connection_, Operation::kLease, {key, value});
}

bool StoreClient::release(const std::string& key) { return ask(*connection_, Operation::kRelease, {key}).number != 0; }

void StoreClient::close() { connection_->close(); }

}  // namespace tessera::store
