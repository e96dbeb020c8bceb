#include "comm/rendezvous.h"

#include <tessera/core/error.h>
#include <tessera/flight/rank_set.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>
#include <vector>

#include "comm/job_store.h"
#include "comm/socket_address.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHostLingers{1000};

/// How the processes of one generation agree on their topology, through the store that they have reached.
class Agreement {
 public:
  Agreement(store::StoreClient& client, const LaunchEnvironment& launch, std::string prefix, milliseconds timeout)
      : client_(client), launch_(launch), prefix_(std::move(prefix)), timeout_(timeout) {}

  /// Note [Agreeing on the nodes]
  /// Each rank knows only its own node. It counts itself for each of the two regular layouts that its node does not
  /// fit. The last rank to arrive reads the counts and publishes the layout. That is a few messages a rank, whatever
  /// the size of the job; only an irregular layout needs the table.
  Topology topology() {
    const Topology blocks = Topology::blocks(launch_.size, launch_.local_size);
    const Topology cyclic = Topology::cyclic(launch_.size, launch_.num_nodes);
    if (launch_.num_nodes > 1) {
      if (!fits(blocks)) add("not_blocks", 1);
      if (!fits(cyclic)) add("not_cyclic", 1);
    }
    client_.set(node_key(launch_.rank), std::to_string(launch_.node));  // also shows that this rank came
    const std::int64_t arrived = add("arrived", 1);
    if (arrived == launch_.size) {
      const bool regular = launch_.num_nodes == 1 || add("not_blocks", 0) == 0;
      client_.set(prefix_ + "topology", regular ? "blocks" : add("not_cyclic", 0) == 0 ? "cyclic" : "table");
    }
    const std::string verdict = wait_for_verdict(arrived);
    return verdict == "blocks" ? blocks : verdict == "cyclic" ? cyclic : Topology::table(nodes_of_all());
  }

  /// Rank 0 may end right after this, and its store with it. So it waits here until all ranks have read the topology.
  void part() {
    const bool last = add("read", 1) == launch_.size;
    if (launch_.rank == 0) {
      if (!last) client_.wait({prefix_ + "all_read"}, timeout_);
      return;
    }
    if (!last) return;
    try {
      client_.set(prefix_ + "all_read", "yes");
    } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): rank 0 got it, and ended before it answered
    }
  }

 private:
  bool fits(const Topology& topology) const {
    return topology.node_of(launch_.rank) == launch_.node &&
           topology.local_rank_of(launch_.rank) == launch_.local_rank &&
           topology.num_ranks_on(launch_.node) == launch_.local_size;
  }

  std::int64_t add(const std::string& key, std::int64_t change) { return client_.add(prefix_ + key, change); }

  std::string node_key(int rank) const { return prefix_ + "node_of/" + std::to_string(rank); }

  std::vector<int> nodes_of_all() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < launch_.size; ++rank) keys.push_back(node_key(rank));
    std::vector<int> nodes;
    for (const auto& value : client_.multi_get(keys, timeout_)) nodes.push_back(std::stoi(value));
    return nodes;
  }

  std::string wait_for_verdict(std::int64_t arrived) {
    // The host of the store gives up last, because the others still ask it how many ranks came.
    const bool hosts = launch_.rank == 0 && rank_zero_hosts(launch_);
    try {
      return client_.get(prefix_ + "topology", hosts ? timeout_ + kHostLingers : timeout_);
    } catch (const store::StoreTimeout&) {
      throw CommError(count_text(arrived) + " of " + std::to_string(launch_.size) + " ranks came within " +
                      std::to_string(timeout_.count()) + " ms" + missing_text() + " (this is rank " +
                      std::to_string(launch_.rank) + "); look at the output of the missing ones");
    }
  }

  /// How many ranks have come; if the store is lost, at least as many as when this rank came.
  std::string count_text(std::int64_t at_least) {
    try {
      return std::to_string(add("arrived", 0));
    } catch (const CommError&) {
      return "at least " + std::to_string(at_least);
    }
  }

  /// Names the ranks that have not come. In a large job only the first rank that asks gets them; otherwise every rank
  /// would query all keys.
  std::string missing_text() {
    constexpr int kFew = 64;
    try {
      const bool first = add("asked_who", 1) == 1;
      if (launch_.size > kFew && !first) return "";
      std::vector<int> missing;
      for (int rank = 0; rank < launch_.size; ++rank) {
        if (!client_.try_get(node_key(rank))) missing.push_back(rank);
      }
      if (missing.empty()) return "";
      return std::string("; ") + (missing.size() == 1 ? "rank " : "ranks ") + flight::ranks_text(missing) + " did not";
    } catch (const CommError&) {
      return "";
    }
  }

  store::StoreClient& client_;
  const LaunchEnvironment& launch_;
  const std::string prefix_;
  const milliseconds timeout_;
};

}  // namespace

Rendezvous meet(const LaunchEnvironment& launch, const std::optional<store::Secret>& secret, milliseconds timeout,
                milliseconds silence) {
  Rendezvous rendezvous;
  if (launch.size == 1) {
    rendezvous.store = c10::make_intrusive<c10d::HashStore>();
    rendezvous.local_address = "127.0.0.1";
    return rendezvous;
  }
  const auto place = reach_job_store(launch, secret, timeout, silence);
  // A restarted job must not see its predecessor's keys.
  const std::string prefix = "tessera/" + launch.generation;
  Agreement agreement(*place->client, launch, prefix + "/", timeout);
  rendezvous.topology = agreement.topology();
  // All ranks are connected, so the secret need not be published any longer. A job that is killed later then leaves no
  // file behind.
  place->published.reset();
  if (rank_zero_hosts(launch)) agreement.part();
  rendezvous.local_address = address_towards(place->address, place->port);
  // The pointer to the client keeps `place` alive, and with it a store hosted here, as long as any group may use it.
  rendezvous.client = std::shared_ptr<store::StoreClient>(place, &*place->client);
  rendezvous.prefix = prefix + "/";
  rendezvous.rank_zero_hosts = rank_zero_hosts(launch);
  rendezvous.store =
      c10::make_intrusive<c10d::PrefixStore>(prefix, c10::make_intrusive<SecureStore>(rendezvous.client, timeout));
  return rendezvous;
}

}  // namespace tessera::comm
