#include "comm/job_store.h"

#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

#include "comm/job_secret.h"
#include "comm/mpi/mpi_runtime.h"
#include "comm/socket_address.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using GivenSecret = std::optional<store::Secret>;

constexpr const char* kLoopback = "127.0.0.1";
bool is_on_one_host(const LaunchEnvironment& launch) { return launch.local_size == launch.size; }

std::string this_rank(const LaunchEnvironment& launch) { return " (this is rank " + std::to_string(launch.rank) + ")"; }

/// Where rank 0 listens when the choice is its own.
std::string address_for(const LaunchEnvironment& launch) {
  if (is_on_one_host(launch)) return kLoopback;
  if (launch.master_address.empty()) return address_of_this_host();
  // Rank 0's host may know itself under a name that leads nowhere else.
  const std::string towards = address_towards(launch.master_address, launch.master_port);
  return is_loopback(towards) ? address_of_this_host() : towards;
}

/// Alike on all ranks, so that none is left waiting for one that was refused.
void require_secret_between_hosts(const LaunchEnvironment& launch, const GivenSecret& secret) {
  if (secret || is_on_one_host(launch)) return;
  throw ConfigError("this job runs on several hosts (" + std::to_string(launch.local_size) + " of its " +
                    std::to_string(launch.size) + " ranks are here) but was given no secret" + this_rank(launch) +
                    ": anybody on the network could join it; " + how_to_give_a_secret());
}

void require_secret_beyond_loopback(const LaunchEnvironment& launch, const GivenSecret& secret) {
  if (secret || is_loopback(launch.master_address)) return;
  throw ConfigError("MASTER_ADDR is " + launch.master_address +
                    ", an address that other hosts may reach, but the job was given no secret" + this_rank(launch) +
                    ". On one host, set MASTER_ADDR to 127.0.0.1; else " + how_to_give_a_secret());
}

std::shared_ptr<JobStore> place_at(const std::string& address, int port) {
  auto place = std::make_shared<JobStore>();
  place->address = address;
  place->port = port;
  return place;
}

/// Listens first: a job that cannot have the port must not take the place of another job's secret.
std::shared_ptr<JobStore> serve(const std::string& address, int port, const GivenSecret& secret) {
  Listener listener = listen_on(address, port);
  auto place = place_at(address, listener.port());
  if (!secret) place->published = std::make_unique<store::HostSecret>(place->port);
  place->server =
      std::make_unique<store::StoreServer>(listener.release(), secret ? *secret : place->published->secret());
  return place;
}

std::shared_ptr<JobStore> joined(std::shared_ptr<JobStore> place, const GivenSecret& secret, milliseconds timeout,
                                 milliseconds silence) {
  store::ClientOptions options;
  options.silence_limit = silence;
  const auto connect = [&](const auto& key) {
    return store::StoreClient::connect(place->address, place->port, key, timeout, options);
  };
  if (secret) {
    place->client = connect(*secret);
  } else if (place->published) {
    place->client = connect(place->published->secret());
  } else {
    place->client = connect(store::SecretSource([port = place->port] { return store::find_host_secret(port); }));
  }
  return place;
}

std::string announcement_of(const JobStore& place) { return place.address + " " + std::to_string(place.port); }

std::shared_ptr<JobStore> announced_place(const std::string& text) {
  const auto space = text.find(' ');
  const auto port = space == std::string::npos ? std::nullopt : port_number(text.substr(space + 1));
  if (!port) throw CommError("expected rank 0 to tell an address and a port, found \"" + text + "\"");
  return place_at(text.substr(0, space), *port);
}

std::shared_ptr<JobStore> told_by_address(const LaunchEnvironment& launch, const GivenSecret& secret) {
  require_secret_beyond_loopback(launch, secret);
  if (launch.rank == 0) return serve(launch.master_address, launch.master_port, secret);
  return place_at(launch.master_address, launch.master_port);
}

/// torchrun's agent keeps a store of its own on MASTER_PORT, open to anybody. It carries the address of ours, nothing
/// else: who lies there about it cannot prove the secret.
std::shared_ptr<JobStore> told_by_agent(const LaunchEnvironment& launch, const GivenSecret& secret,
                                        milliseconds timeout) {
  const std::string key = "tessera/" + launch.generation + "/store";
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    const c10::intrusive_ptr<c10d::Store> agent = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    if (launch.rank != 0) return announced_place(agent->get_to_str(key));
    auto place = serve(address_for(launch), 0, secret);
    agent->set(key, announcement_of(*place));
    return place;
  } catch (const c10::Error& error) {
    throw CommError("rank " + std::to_string(launch.rank) + " could not use the store of torchrun's agent at " +
                    launch.master_address + ":" + std::to_string(launch.master_port) +
                    " to learn where the job's own is: " + error.what_without_backtrace() +
                    "; look at the output of rank 0, which tells it");
  }
}

/// mpirun tells no address; rank 0 chooses one and MPI tells it.
std::shared_ptr<JobStore> told_by_mpi(const LaunchEnvironment& launch, const GivenSecret& secret) {
  if (!has_mpi()) {
    throw ConfigError(
        "mpirun gives no rendezvous address and this build has no MPI to ask; set MASTER_ADDR and "
        "MASTER_PORT (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)");
  }
  std::shared_ptr<JobStore> place;
  if (launch.rank == 0) place = serve(address_for(launch), 0, secret);
  const std::string announced = mpi_broadcast(place ? announcement_of(*place) : "");
  return place ? place : announced_place(announced);
}

std::shared_ptr<JobStore> told_by_tessera_run(const LaunchEnvironment& launch, const GivenSecret& secret) {
  if (!secret) {
    throw ConfigError("TESSERA_STORE is set but no secret is" + this_rank(launch) +
                      "; whoever set it must set TESSERA_SECRET or TESSERA_SECRET_FILE too");
  }
  return place_at(launch.store_address, launch.store_port);
}

std::shared_ptr<JobStore> find_place(const LaunchEnvironment& launch, const GivenSecret& secret, milliseconds timeout) {
  if (!rank_zero_hosts(launch)) return told_by_tessera_run(launch, secret);
  require_secret_between_hosts(launch, secret);
  if (launch.agent_has_store) return told_by_agent(launch, secret, timeout);
  if (launch.master_address.empty()) return told_by_mpi(launch, secret);
  return told_by_address(launch, secret);
}

}  // namespace

bool rank_zero_hosts(const LaunchEnvironment& launch) { return launch.store_address.empty(); }

std::shared_ptr<JobStore> reach_job_store(const LaunchEnvironment& launch, const GivenSecret& secret,
                                          milliseconds timeout, milliseconds silence) {
  return joined(find_place(launch, secret, timeout), secret, timeout, silence);
}

}  // namespace tessera::comm
