#include <tessera/comm/settle_math.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/fake/fake_connector.h"
#include "comm/group.h"
#include "comm/job_secret.h"
#include "comm/launch_environment.h"
#include "comm/process_connector.h"
#include "comm/rendezvous.h"
#include "comm/watch/start_watch.h"
#include "comm/world_state.h"

namespace tessera {

World::State::State(std::shared_ptr<comm::WorldContext> shared)
    : context(std::move(shared)), comm(std::make_shared<Group>(context, "world", [this] {
        std::vector<int> ranks(static_cast<std::size_t>(context->size));
        std::iota(ranks.begin(), ranks.end(), 0);
        return ranks;
      }())) {}

World::World(std::shared_ptr<State> state) : state_(std::move(state)) {}

int World::rank() const { return state_->context->rank; }
int World::size() const { return state_->context->size; }
int World::local_rank() const { return topology().local_rank_of(rank()); }
int World::local_size() const { return topology().num_ranks_on(node()); }
int World::node() const { return topology().node_of(rank()); }
int World::num_nodes() const { return topology().num_nodes(); }
const Topology& World::topology() const { return state_->context->topology; }
const std::string& World::launcher() const { return state_->context->launcher; }
const Communicator& World::comm() const { return state_->comm; }

std::shared_ptr<comm::WorldContext> comm::make_context(const WorldOptions& options, int rank, int size) {
  WorldOptions::fields().check(options);
  settle_math();
  auto context = std::make_shared<WorldContext>();
  context->recorder->introduce(rank, size);
  context->rank = rank;
  context->size = size;
  context->timeout = options.timeout();
  context->checked = options.checked();
  if (options.timeout().count() <= 0) throw ConfigError("the timeout of a world must be above zero");
  context->strategy = parse_communication_strategy(options.strategy());
  if (!options.tuning_file().empty()) context->tuning = TuningTable::load(options.tuning_file());
  return context;
}

namespace {

/// A host that swaps is not dead, and one that is gone closes its connections at once: so not less than half a minute.
/// Who wants to wait for longer, in a debugger, says so by `lost_after`.
std::chrono::milliseconds store_silence(const WorldOptions& options) {
  constexpr std::chrono::milliseconds kLeast = std::chrono::seconds(30);
  constexpr std::chrono::milliseconds kForGood = std::chrono::hours(24);
  return options.lost_after().count() == 0 ? kForGood : std::max(kLeast, options.lost_after());
}

}  // namespace

World init(const WorldOptions& options) {
  const comm::GetVariable environment = comm::process_environment();
  const comm::LaunchEnvironment launch = comm::read_launch_environment(environment);
  auto context = comm::make_context(options, launch.rank, launch.size);
  context->launcher = launch.launcher;
  if (const auto box = environment("TESSERA_BLACK_BOX")) {
    context->recorder = std::make_unique<flight::Recorder>(*box);
    context->recorder->introduce(launch.rank, launch.size);
  }
  const auto secret = comm::given_secret(environment, options.secret_file());
  const comm::Rendezvous rendezvous = comm::meet(launch, secret, options.init_timeout(), store_silence(options));
  context->topology = rendezvous.topology;
  context->store = rendezvous.store;
  comm::ProcessConnector::Settings settings;
  settings.backend = options.backend();
  settings.interface = options.interface().empty() ? rendezvous.local_address : options.interface();
  settings.custom = options.transport();
  settings.topology = rendezvous.topology;
  settings.rank = launch.rank;
  settings.store = rendezvous.store;
  context->connector = std::make_shared<comm::ProcessConnector>(std::move(settings));
  context->watch = comm::start_watch(options, launch, rendezvous, *context->recorder);
  return World(std::make_shared<World::State>(std::move(context)));
}

World fake_world(int rank, int size, int ranks_per_node, const WorldOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ConfigError("rank " + std::to_string(rank) + " does not fit a fake world of " + std::to_string(size));
  }
  auto context = comm::make_context(options, rank, size);
  context->launcher = "fake";
  context->topology = Topology::blocks(size, std::min(size, ranks_per_node));
  auto traffic = std::make_shared<FakeTraffic>();
  context->connector = std::make_shared<comm::FakeConnector>(traffic);
  auto state = std::make_shared<World::State>(std::move(context));
  state->fake_traffic = std::move(traffic);
  return World(std::move(state));
}

FakeTraffic fake_traffic(const World& world) {
  const auto traffic = world.state().fake_traffic;
  if (!traffic) throw ConfigError("only a fake world counts what it would have sent");
  return *traffic;
}

}  // namespace tessera
