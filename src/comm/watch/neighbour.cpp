#include "comm/watch/neighbour.h"

#include <tessera/core/error.h>
#include <tessera/flight/process_state.h>

#include <unistd.h>

#include <utility>

namespace tessera::comm {
namespace {

constexpr const char* kNeverSet = "never";

store::ServerOptions server_options(std::chrono::milliseconds silence) {
  store::ServerOptions options;
  options.silence_limit = silence;
  options.strangers_share = 0.0025;  // one client is expected, and every rank has such a server
  return options;
}

store::ClientOptions client_options(std::chrono::milliseconds silence) {
  store::ClientOptions options;
  options.silence_limit = silence;
  options.ping_interval = silence / 5;
  return options;
}

}  // namespace

Neighbour::Neighbour(Settings settings, const JobKeys& keys, const store::Secret& secret, OnLost on_lost)
    : settings_(std::move(settings)),
      keys_(keys),
      secret_(secret),
      on_lost_(std::move(on_lost)),
      server_(settings_.address, 0, secret, server_options(settings_.silence)) {
  RankAddress own;
  own.address = settings_.address;
  own.port = server_.port();
  own.process_space = flight::process_space();
  own.process = getpid();
  own.black_box = settings_.black_box;
  keys_.store().set(keys_.address(settings_.rank), to_json(own));
  thread_ = std::thread([this] { run(); });
}

Neighbour::~Neighbour() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (client_) client_->close();
  }
  // The owner has closed the job's store before, which ends a wait of the thread for an address.
  if (thread_.joinable()) thread_.join();
}

void Neighbour::run() {
  try {
    for (int next = (settings_.rank + 1) % settings_.size; next != settings_.rank; next = (next + 1) % settings_.size) {
      End end = End::kSilent;
      while (end == End::kSilent) end = follow(next);
      if (end == End::kOver) return;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): Watch::listen() reports a lost store
  }
}

Neighbour::End Neighbour::follow(int rank) {
  Loss loss;
  loss.rank = rank;
  loss.address = rank_address_from_json(keys_.store().get(keys_.address(rank), store::kForever));
  try {
    auto client = reach(rank, loss.address);
    if (!client) return is_stopping() ? End::kOver : End::kLeft;
    store::StoreClient* connected = client.get();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return End::kOver;
      client_ = std::move(client);
    }
    connected->get(kNeverSet, store::kForever);
  } catch (const store::StoreSilent& error) {
    loss.reason = error.what();
    loss.silent = true;
  } catch (const CommError& error) {
    loss.reason = error.what();
  }
  if (is_stopping()) return End::kOver;
  if (has_left(rank)) return End::kLeft;
  on_lost_(loss);
  return loss.silent ? End::kSilent : End::kOver;
}

/// Connects in attempts that begin short, because at the end of a job either rank may leave meanwhile. Null if so.
std::unique_ptr<store::StoreClient> Neighbour::reach(int rank, const RankAddress& address) {
  constexpr std::chrono::milliseconds kLongest{2500};
  std::chrono::milliseconds attempt{250};
  const auto deadline = std::chrono::steady_clock::now() + settings_.silence;
  while (true) {
    try {
      return std::make_unique<store::StoreClient>(store::StoreClient::connect(
          address.address, address.port, secret_, attempt, client_options(settings_.silence)));
    } catch (const store::StoreNotReached&) {
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
    if (is_stopping() || has_left(rank)) return nullptr;
    attempt = std::min(2 * attempt, kLongest);
  }
}

bool Neighbour::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

bool Neighbour::has_left(int rank) { return keys_.store().check({keys_.left(rank)}); }

}  // namespace tessera::comm
