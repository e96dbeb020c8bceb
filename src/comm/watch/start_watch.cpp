#include "comm/watch/start_watch.h"

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
  return std::make_unique<Watch>(std::move(settings), std::move(keys), secret, recorder, pthread_self());
}

}  // namespace tessera::comm
