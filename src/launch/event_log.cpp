#include "launch/event_log.h"

#include <tessera/core/error.h>

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "launch/failure_report.h"
#include "launch/job_store.h"

namespace tessera::launch {
namespace {

constexpr const char* kLostKey = "launch/lost";

std::string key_of(std::int64_t number) { return "launch/event/" + std::to_string(number); }

}  // namespace

EventLog::EventLog(EventLogPlace place) : place_(std::move(place)), news_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!news_) throw CommError(std::string("no descriptor for news of other nodes: ") + std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

EventLog::~EventLog() {
  if (thread_.joinable()) stop(false);
}

void EventLog::leave() { stop(true); }

void EventLog::stop(bool in_order) {
  {
    const std::lock_guard lock(mutex_);
    in_order_ = in_order;
    leaving_ = true;
    outgoing_changed_.notify_all();
  }
  thread_.join();
}

void EventLog::append(std::string event) {
  const std::lock_guard lock(mutex_);
  outgoing_.push(std::move(event));
  outgoing_changed_.notify_all();
}

EventLog::News EventLog::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = read(news_.get(), &count, sizeof(count));
  const std::lock_guard lock(mutex_);
  return std::exchange(incoming_, {});
}

void EventLog::publish(std::string event) {
  const std::lock_guard lock(mutex_);
  incoming_.events.push_back(std::move(event));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(news_.get(), &one, sizeof(one));
}

void EventLog::fail(const std::string& why, int exit_code) {
  const std::lock_guard lock(mutex_);
  incoming_.disconnection = Disconnection{why, exit_code};
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(news_.get(), &one, sizeof(one));
}

/// Connects in short attempts, so that leave() can end it meanwhile.
std::optional<store::StoreClient> EventLog::connect() {
  constexpr std::chrono::milliseconds kSlice{2000};
  const auto start = std::chrono::steady_clock::now();
  while (!leaving_) {
    try {
      return store::StoreClient::connect(place_.address, place_.port, place_.secret, std::min(kSlice, place_.timeout));
    } catch (const store::StoreNotReached&) {
      if (std::chrono::steady_clock::now() - start < place_.timeout) continue;
      throw CommError("the launcher of node 0 was not reached at " + endpoint_text(place_.address, place_.port) +
                      " within " + duration_for_people(place_.timeout) +
                      "; is it running, is the address one of its host, and does a firewall let the port through?");
    }
  }
  return std::nullopt;
}

void EventLog::run() {
  try {
    auto client = connect();
    if (!client) return;
    if (!place_.is_host) client->lease(kLostKey, place_.tag);
    std::thread writer([&] { write(*client); });
    std::thread watcher;
    if (place_.is_host) watcher = std::thread([&] { watch_for_lost(*client); });
    follow(*client);
    client->close();
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
      outgoing_changed_.notify_all();
    }
    writer.join();
    if (watcher.joinable()) watcher.join();
  } catch (const std::exception& error) {
    fail(error.what(), exit_code(error));
  }
}

void EventLog::follow(store::StoreClient& client) {
  try {
    for (std::int64_t number = 1;; ++number) {
      const std::string entry = client.get(key_of(number), store::kForever);
      publish(entry.substr(entry.find(' ') + 1));
    }
  } catch (const std::exception& error) {
    if (!leaving_) fail(error.what(), exit_code(error));
  }
}

/// An entry takes the first number that is free. If writers reserved numbers first, one that dies before it writes its
/// entry would leave a gap, at which all readers would wait for ever.
void EventLog::write(store::StoreClient& client) {
  std::int64_t number = 1;
  try {
    for (int serial = 0;; ++serial) {
      std::unique_lock lock(mutex_);
      outgoing_changed_.wait(lock, [&] { return leaving_ || !outgoing_.empty(); });
      if (outgoing_.empty() || (leaving_ && !in_order_)) break;
      const std::string event = outgoing_.front();
      outgoing_.pop();
      lock.unlock();
      // No two entries are equal, so a writer recognises its own.
      const std::string entry = place_.writer + "." + std::to_string(serial) + " " + event;
      while (client.compare_set(key_of(number), "", entry) != entry) ++number;
    }
    if (in_order_) client.release(kLostKey);
    client.close();
  } catch (const Error&) {
    return;  // follow() gets the same error, and reports it
  }
}

void EventLog::watch_for_lost(store::StoreClient& client) {
  try {
    while (true) {
      append("lost " + client.get(kLostKey, store::kForever));
      client.delete_key(kLostKey);
    }
  } catch (const Error&) {
    return;  // the connection is closed at the end
  }
}

}  // namespace tessera::launch
