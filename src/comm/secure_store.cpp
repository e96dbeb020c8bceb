#include "comm/secure_store.h"

#include <tessera/core/error.h>

#include <c10/util/Exception.h>

#include <utility>

namespace tessera::comm {
namespace {

using Bytes = std::vector<std::uint8_t>;
using std::chrono::milliseconds;

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// The result of `operation`, with errors as c10d's own stores throw them.
template <typename Operation>
auto as_in_c10d(Operation operation) -> decltype(operation()) {
  try {
    return operation();
  } catch (const store::StoreTimeout& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  } catch (const CommError& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  } catch (const ConfigError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

[[noreturn]] void refuse_queue(const std::string& key) {
  C10_THROW_ERROR(NotImplementedError, "the store of a job has no queues, asked for \"" + key +
                                           "\"; use set() and get(), or add() to count");
}

}  // namespace

SecureStore::SecureStore(std::shared_ptr<store::StoreClient> client, milliseconds timeout)
    : c10d::Store(timeout), client_(std::move(client)) {}

c10::intrusive_ptr<c10d::Store> SecureStore::clone() { return c10::make_intrusive<SecureStore>(client_, timeout_); }

void SecureStore::set(const std::string& key, const Bytes& value) {
  as_in_c10d([&] { client_->set(key, text_of(value)); });
}

Bytes SecureStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return as_in_c10d([&] { return bytes_of(client_->compare_set(key, text_of(expected), text_of(desired))); });
}

Bytes SecureStore::get(const std::string& key) {
  return as_in_c10d([&] { return bytes_of(client_->get(key, timeout_)); });
}

std::int64_t SecureStore::add(const std::string& key, std::int64_t value) {
  return as_in_c10d([&] { return client_->add(key, value); });
}

bool SecureStore::deleteKey(const std::string& key) {
  return as_in_c10d([&] { return client_->delete_key(key); });
}

bool SecureStore::check(const std::vector<std::string>& keys) {
  return as_in_c10d([&] { return client_->check(keys); });
}

std::int64_t SecureStore::getNumKeys() {
  return as_in_c10d([&] { return client_->num_keys(); });
}

void SecureStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void SecureStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  as_in_c10d([&] { client_->wait(keys, timeout == kNoTimeout ? timeout_ : timeout); });
}

void SecureStore::append(const std::string& key, const Bytes& value) {
  as_in_c10d([&] { client_->append(key, text_of(value)); });
}

std::vector<Bytes> SecureStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<Bytes> values;
  values.reserve(keys.size());
  for (const auto& value : as_in_c10d([&] { return client_->multi_get(keys, timeout_); })) {
    values.push_back(bytes_of(value));
  }
  return values;
}

void SecureStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  if (keys.size() != values.size()) {
    C10_THROW_ERROR(ValueError, "multiSet() needs a value for each key; found " + std::to_string(keys.size()) +
                                    " keys and " + std::to_string(values.size()) + " values");
  }
  std::vector<std::pair<std::string, std::string>> entries;
  entries.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) entries.emplace_back(keys[i], text_of(values[i]));
  as_in_c10d([&] { client_->multi_set(entries); });
}

void SecureStore::queuePush(const std::string& key, const Bytes& /*value*/) { refuse_queue(key); }
Bytes SecureStore::queuePop(const std::string& key, bool /*block*/) { refuse_queue(key); }
std::int64_t SecureStore::queueLen(const std::string& key) { refuse_queue(key); }

}  // namespace tessera::comm
