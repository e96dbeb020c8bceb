#include "comm/rendezvous.h"

#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>
#include <vector>

#include "comm/mpi/mpi_runtime.h"
#include "comm/socket_address.h"

namespace tessera::comm {
namespace {

c10::intrusive_ptr<c10d::Store> serve(Listener listener, const std::string& address,
                                      std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = static_cast<std::uint16_t>(listener.port);
  options.masterListenFd = listener.descriptor;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

c10::intrusive_ptr<c10d::Store> join(const std::string& address, int port, std::chrono::milliseconds timeout) {
  // TCPStore sleeps a second between attempts; a quick knock first saves most of it.
  wait_until_reachable(address, port, timeout);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

c10::intrusive_ptr<c10d::Store> told_by_launcher(const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  if (launch.rank == 0 && !launch.launcher_has_store) {
    return serve(listen_on(launch.master_address, launch.master_port), launch.master_address, timeout);
  }
  return join(launch.master_address, launch.master_port, timeout);
}

/// mpirun tells no address; rank 0 chooses one and MPI tells it.
c10::intrusive_ptr<c10d::Store> told_by_mpi(LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  if (!has_mpi()) {
    throw ConfigError(
        "mpirun gives no rendezvous address and this build has no MPI to ask; set MASTER_ADDR and "
        "MASTER_PORT (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)");
  }
  const bool one_node = launch.local_size == launch.size;
  Listener listener;
  std::string announced;
  if (launch.rank == 0) {
    launch.master_address = one_node ? "127.0.0.1" : address_of_this_host();
    listener = listen_on(launch.master_address, 0);
    announced = launch.master_address + " " + std::to_string(listener.port);
  }
  announced = mpi_broadcast(announced);
  const auto space = announced.find(' ');
  launch.master_address = announced.substr(0, space);
  launch.master_port = std::stoi(announced.substr(space + 1));
  if (launch.rank == 0) return serve(listener, launch.master_address, timeout);
  return join(launch.master_address, launch.master_port, timeout);
}

constexpr std::chrono::milliseconds kHostLingers{1000};

/// How many have come, or at least how many had when this rank did.
std::string count_text(c10d::Store& store, std::int64_t at_least) {
  try {
    return std::to_string(store.add("arrived", 0));
  } catch (const std::exception&) {
    return "at least " + std::to_string(at_least);
  }
}

std::vector<int> nodes_of_all(c10d::Store& store, int num_ranks) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < num_ranks; ++rank) keys.push_back("node_of/" + std::to_string(rank));
  std::vector<int> nodes;
  for (const auto& value : store.multiGet(keys)) nodes.push_back(std::stoi(std::string(value.begin(), value.end())));
  return nodes;
}

/// Note [Agreeing on the nodes]
/// Each rank knows its own node only. It counts itself against the two regular layouts; the last to come reads the
/// counts and publishes the verdict. One message or two a rank, whatever the size of the job; only an irregular layout
/// needs the table.
Topology agree_on_topology(c10d::Store& store, const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  const auto fits = [&](const Topology& topology) {
    return topology.node_of(launch.rank) == launch.node && topology.local_rank_of(launch.rank) == launch.local_rank &&
           topology.num_ranks_on(launch.node) == launch.local_size;
  };
  const Topology blocks = Topology::blocks(launch.size, launch.local_size);
  const Topology cyclic = Topology::cyclic(launch.size, launch.num_nodes);
  if (launch.num_nodes > 1) {
    if (!fits(blocks)) store.add("not_blocks", 1);
    if (!fits(cyclic)) store.add("not_cyclic", 1);
    store.set("node_of/" + std::to_string(launch.rank), std::to_string(launch.node));
  }
  const std::int64_t arrived = store.add("arrived", 1);
  if (arrived == launch.size) {
    const bool regular = launch.num_nodes == 1 || store.add("not_blocks", 0) == 0;
    store.set("topology", regular ? "blocks" : store.add("not_cyclic", 0) == 0 ? "cyclic" : "table");
  }
  const bool hosts_store = launch.rank == 0 && !launch.launcher_has_store;
  try {
    // The host gives up last: the others still ask it how many came.
    store.wait({"topology"}, hosts_store ? timeout + kHostLingers : timeout);
  } catch (const std::exception&) {
    throw CommError(count_text(store, arrived) + " of " + std::to_string(launch.size) + " ranks came within " +
                    std::to_string(timeout.count()) + " ms (this is rank " + std::to_string(launch.rank) +
                    "); look at the output of the missing ones");
  }
  const std::string verdict = store.get_to_str("topology");
  const Topology topology = verdict == "blocks"   ? blocks
                            : verdict == "cyclic" ? cyclic
                                                  : Topology::table(nodes_of_all(store, launch.size));
  // Rank 0 may end right after this, and the store with it: not before all have read what they came for.
  if (store.add("read", 1) == launch.size) store.set("all_read", "yes");
  if (hosts_store) store.wait({"all_read"}, timeout);
  return topology;
}

}  // namespace

Rendezvous meet(const LaunchEnvironment& given, std::chrono::milliseconds timeout) {
  LaunchEnvironment launch = given;
  Rendezvous rendezvous;
  if (launch.size == 1) {
    rendezvous.store = c10::make_intrusive<c10d::HashStore>();
    rendezvous.local_address = "127.0.0.1";
    return rendezvous;
  }
  auto store = launch.master_address.empty() ? told_by_mpi(launch, timeout) : told_by_launcher(launch, timeout);
  // A restarted job must not see its predecessor's keys.
  rendezvous.store = c10::make_intrusive<c10d::PrefixStore>("tessera/" + launch.generation, std::move(store));
  rendezvous.store->setTimeout(timeout);
  rendezvous.local_address = address_towards(launch.master_address, launch.master_port);
  rendezvous.topology = agree_on_topology(*rendezvous.store, launch, timeout);
  return rendezvous;
}

}  // namespace tessera::comm
