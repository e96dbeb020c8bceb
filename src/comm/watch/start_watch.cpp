#include "comm/watch/start_watch.h"

#include <tessera/core/error.h>

#include <cstdlib>
#include <utility>

namespace tessera::comm {
namespace {

/// The job's own secret may be known to its store's host alone, so rank 0 makes another and tells it through the store,
/// which only ranks can read.
store::Secret ring_secret(const Rendezvous& rendezvous, int rank, std::chrono::milliseconds timeout) {
  const std::string key = rendezvous.prefix + "watch/secret";
  if (rank == 0) rendezvous.client->set(key, store::Secret::mint().hex());
  return store::Secret::from_hex(rendezvous.client->get(key, timeout));
}

/// Rank 0 may leave right after init(), and the store with it: it waits until all have come so far.
void tell_that_it_watches(const JobKeys& keys, int size) {
  if (keys.store().add(keys.watching(), 1) < size) return;
  try {
    keys.store().set(keys.all_watch(), "yes");
  } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): rank 0 heard it, and was gone before it answered
  }
}

}  // namespace

std::unique_ptr<Watch> start_watch(const WorldOptions& options, const LaunchEnvironment& launch,
                                   const Rendezvous& rendezvous, flight::Recorder& recorder) {
  if (launch.size == 1 || options.lost_after().count() == 0) return nullptr;
  WatchSettings settings;
  settings.rank = launch.rank;
  settings.size = launch.size;
  settings.store_host = rendezvous.rank_zero_hosts ? 0 : -1;
  settings.address = rendezvous.local_address;
  settings.silence = options.lost_after();
  settings.slow_after = options.slow_after();
  if (const char* folder = std::getenv("TESSERA_LOG_DIR")) settings.log_folder = folder;
  JobKeys keys(rendezvous.client, rendezvous.prefix + "watch/");
  const store::Secret secret = ring_secret(rendezvous, launch.rank, options.init_timeout());
  auto watch = std::make_unique<Watch>(std::move(settings), keys, secret, recorder, pthread_self());
  tell_that_it_watches(keys, launch.size);
  return watch;
}

}  // namespace tessera::comm
