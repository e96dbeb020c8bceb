#include "comm/job_store.h"

#include <tessera/core/error.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

#include "comm/mpi/mpi_runtime.h"
#include "comm/socket_address.h"

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

std::optional<store::Secret> given_secret(const GetVariable& get, const std::string& secret_file) {
  if (const auto digits = get("TESSERA_SECRET")) {
    try {
      return store::Secret::from_hex(*digits);
    } catch (const ConfigError& error) {
      throw ConfigError(std::string("the variable TESSERA_SECRET: ") + error.what());
    }
  }
  const std::string path = !secret_file.empty() ? secret_file : get("TESSERA_SECRET_FILE").value_or("");
  if (path.empty()) return std::nullopt;
  return store::Secret::from_file(path);
}

std::string how_to_give_a_secret() {
  return "make a secret with `tessera secret FILE`, put the file where every rank can read it, and set "
         "TESSERA_SECRET_FILE to its path for all of them; or start the job with `tessera run`, which does it all";
}

namespace {

using std::chrono::milliseconds;
using GivenSecret = std::optional<store::Secret>;

constexpr const char* kLoopback = "127.0.0.1";
bool is_on_one_host(const LaunchEnvironment& launch) { return launch.local_size == launch.size; }

std::string this_rank(const LaunchEnvironment& launch) { return " (this is rank " + std::to_string(launch.rank) + ")"; }

/// Where rank 0 listens when it may choose the address.
std::string address_for(const LaunchEnvironment& launch) {
  if (is_on_one_host(launch)) return kLoopback;
  if (launch.master_address.empty()) return address_of_this_host();
  // On rank 0's own host, its name may resolve to the loopback address, which other hosts cannot reach.
  const std::string towards = address_towards(launch.master_address, launch.master_port);
  return is_loopback(towards) ? address_of_this_host() : towards;
}

/// All ranks decide alike, so that none waits for a rank that has thrown.
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

/// Listens before it publishes a secret: a job that cannot have the port must not overwrite the secret of the job that
/// has it.
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

std::shared_ptr<JobStore> store_at_address(const LaunchEnvironment& launch, const GivenSecret& secret) {
  require_secret_beyond_loopback(launch, secret);
  if (launch.rank == 0) return serve(launch.master_address, launch.master_port, secret);
  return place_at(launch.master_address, launch.master_port);
}

/// torchrun's agent keeps a store of its own on MASTER_PORT, open to anybody. We publish only the address of our store
/// there: a process that publishes a false address cannot prove the secret.
std::shared_ptr<JobStore> store_of_agent(const LaunchEnvironment& launch, const GivenSecret& secret,
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

/// mpirun provides no address. Rank 0 chooses one, and MPI broadcasts it.
std::shared_ptr<JobStore> store_by_mpi(const LaunchEnvironment& launch, const GivenSecret& secret) {
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

std::shared_ptr<JobStore> store_of_tessera_run(const LaunchEnvironment& launch, const GivenSecret& secret) {
  if (!secret) {
    throw ConfigError("TESSERA_STORE is set but no secret is" + this_rank(launch) +
                      "; whoever set it must set TESSERA_SECRET or TESSERA_SECRET_FILE too");
  }
  return place_at(launch.store_address, launch.store_port);
}

std::shared_ptr<JobStore> find_place(const LaunchEnvironment& launch, const GivenSecret& secret, milliseconds timeout) {
  if (!rank_zero_hosts(launch)) return store_of_tessera_run(launch, secret);
  require_secret_between_hosts(launch, secret);
  if (launch.agent_has_store) return store_of_agent(launch, secret, timeout);
  if (launch.master_address.empty()) return store_by_mpi(launch, secret);
  return store_at_address(launch, secret);
}

}  // namespace

bool rank_zero_hosts(const LaunchEnvironment& launch) { return launch.store_address.empty(); }

std::shared_ptr<JobStore> reach_job_store(const LaunchEnvironment& launch, const GivenSecret& secret,
                                          milliseconds timeout, milliseconds silence) {
  return joined(find_place(launch, secret, timeout), secret, timeout, silence);
}

}  // namespace tessera::comm
