#include "store/request_handler.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

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

namespace {

std::optional<std::int64_t> counter_of(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

/// For messages, which must not grow as large as a key can be.
std::string quoted(const std::string& key) {
  constexpr std::size_t kShown = 200;
  return '"' + key.substr(0, kShown) + (key.size() > kShown ? "\"..." : "\"");
}

}  // namespace

void RequestHandler::handle(ConnectionId connection, Request request) {
  const WaitId id{connection, request.id};
  auto& fields = request.fields;
  switch (request.operation) {
    case Operation::kPing:
      return done(id);
    case Operation::kSet:
    case Operation::kMultiSet:
      set_all(fields);
      return done(id);
    case Operation::kGet:
      return get(id, std::move(fields));
    case Operation::kTryGet: {
      const std::string* value = table_.find(fields[0]);
      return value != nullptr ? done(id, 1, {*value}) : done(id);
    }
    case Operation::kAdd:
      return add(id, fields[0], request.number);
    case Operation::kCompareSet:
      return compare_set(id, fields);
    case Operation::kAppend:
      return append(id, fields[0], fields[1]);
    case Operation::kWait:
      return wait(id, fields);
    case Operation::kCheck:
      return done(id, table_.missing(fields).empty() ? 1 : 0);
    case Operation::kDeleteKey:
      return done(id, table_.erase(fields[0]) ? 1 : 0);
    case Operation::kNumKeys:
      return done(id, static_cast<std::int64_t>(table_.values().size()));
    case Operation::kDeletePrefix:
      return done(id, static_cast<std::int64_t>(table_.erase_prefix(fields[0])));
    case Operation::kLease:
      leases_[connection][fields[0]] = std::move(fields[1]);
      return done(id);
    case Operation::kRelease:
      return done(id, release(connection, fields[0]) ? 1 : 0);
    case Operation::kCancel:
      return cancel({connection, static_cast<std::uint64_t>(request.number)});
  }
}

void RequestHandler::disconnect(ConnectionId connection) {
  table_.cancel_all(connection);
  gets_.erase(gets_.lower_bound({connection, 0}), gets_.lower_bound({connection + 1, 0}));
  const auto leases = leases_.extract(connection);
  if (leases.empty()) return;
  for (auto& [key, value] : leases.mapped()) set(key, std::move(value));
}

bool RequestHandler::release(ConnectionId connection, const std::string& key) {
  const auto found = leases_.find(connection);
  if (found == leases_.end() || found->second.erase(key) == 0) return false;
  if (found->second.empty()) leases_.erase(found);  // see has_lease()
  return true;
}

void RequestHandler::get(WaitId id, std::vector<std::string> keys) {
  const auto missing = table_.missing(keys);
  if (missing.empty()) return answer_values(id, keys);
  if (table_.waits(id)) return refuse(id, "a request that still waits has the same number");
  table_.wait(id, missing);
  gets_[id] = std::move(keys);
}

void RequestHandler::wait(WaitId id, const std::vector<std::string>& keys) {
  const auto missing = table_.missing(keys);
  if (missing.empty()) return done(id);
  if (table_.waits(id)) return refuse(id, "a request that still waits has the same number");
  table_.wait(id, missing);
}

void RequestHandler::add(WaitId id, const std::string& key, std::int64_t change) {
  const std::string* text = table_.find(key);
  const auto before = text != nullptr ? counter_of(*text) : 0;
  std::int64_t after = 0;
  if (!before) return refuse(id, "add() needs a counter, and the value of " + quoted(key) + " is no whole number");
  if (__builtin_add_overflow(*before, change, &after)) {
    return refuse(id, "the counter " + quoted(key) + " would leave the range of 64 bits");
  }
  set(key, std::to_string(after));
  done(id, after);
}

void RequestHandler::compare_set(WaitId id, std::vector<std::string>& fields) {
  const std::string* value = table_.find(fields[0]);
  const std::string& expected = fields[1];
  if (value != nullptr ? *value != expected : !expected.empty()) {
    return done(id, 0, {value != nullptr ? *value : expected});
  }
  set(fields[0], fields[2]);
  done(id, 1, {std::move(fields[2])});
}

void RequestHandler::append(WaitId id, const std::string& key, const std::string& suffix) {
  const std::string* value = table_.find(key);
  const std::size_t size = suffix.size() + (value != nullptr ? value->size() : 0);
  if (kLengthBytes + kHeaderBytes + kLengthBytes + size > kMaxFrameBytes) {
    return refuse(id, "the value of " + quoted(key) + " would grow beyond what a message can carry");
  }
  if (value != nullptr) {
    table_.append(key, suffix);
  } else {
    set(key, suffix);
  }
  done(id);
}

void RequestHandler::set_all(std::vector<std::string>& pairs) {
  for (std::size_t i = 0; i < pairs.size(); i += 2) set(pairs[i], std::move(pairs[i + 1]));
}

void RequestHandler::cancel(WaitId id) {
  // A request that was answered meanwhile gets no second answer.
  if (!table_.waits(id)) return;
  gets_.erase(id);
  answer_(id.connection, Response{id.request, Status::kCancelled, 0, table_.cancel(id)});
}

void RequestHandler::answer_values(WaitId id, const std::vector<std::string>& keys) {
  std::size_t size = kLengthBytes + kHeaderBytes;
  for (const std::string& key : keys) size += kLengthBytes + table_.find(key)->size();
  if (size > kMaxFrameBytes) return refuse(id, "the values together are larger than a message can be; get them singly");
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(*table_.find(key));
  done(id, 0, std::move(values));
}

void RequestHandler::set(const std::string& key, std::string value) {
  std::vector<WaitId> ready;
  table_.set(key, std::move(value), ready);
  for (const WaitId id : ready) {
    const auto keys = gets_.extract(id);
    // A key that came early may have been deleted since: get() then waits for it again.
    keys.empty() ? done(id) : get(id, std::move(keys.mapped()));
  }
}

void RequestHandler::done(WaitId id, std::int64_t number, std::vector<std::string> fields) {
  answer_(id.connection, Response{id.request, Status::kDone, number, std::move(fields)});
}

void RequestHandler::refuse(WaitId id, std::string why) {
  answer_(id.connection, Response{id.request, Status::kRefused, 0, {std::move(why)}});
}

}  // namespace tessera::store
