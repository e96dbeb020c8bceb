#include <tessera/comm/build.h>
#include <tessera/comm/settle_math.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "comm/connector.h"
#include "comm/fake/fake_engine.h"
#include "comm/group.h"
#include "comm/host/connect_host.h"
#include "comm/job_store.h"
#include "comm/launch_environment.h"
#include "comm/mpi/mpi_runtime.h"
#include "comm/nccl/connect_nccl.h"
#include "comm/rendezvous.h"
#include "comm/watch/watch.h"
#include "comm/world_context.h"

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

at::Device World::device() const {
  const auto type = at::accelerator::getAccelerator();
  const int num_devices = type ? at::accelerator::deviceCount() : 0;
  if (num_devices == 0) return at::kCPU;
  // Processes that see one each see different ones; threads see the same.
  const bool has_its_own = num_devices == 1 && launcher() != "threads";
  if (!has_its_own && local_size() > num_devices) {
    throw ConfigError("the node of rank " + std::to_string(rank()) + " has " + std::to_string(local_size()) +
                      " ranks, and " + std::to_string(num_devices) + " devices of type " +
                      c10::DeviceTypeName(*type, /*lower_case=*/true) +
                      ": start as many ranks as there are devices, or let each rank see one of its own");
  }
  const auto index = static_cast<at::DeviceIndex>(has_its_own ? 0 : local_rank());
  at::accelerator::setDeviceIndex(index);
  return {*type, index};
}

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

/// At least half a minute: a host that swaps is not dead, and the connections of a process that ended close at once.
/// Users who need longer, as in a debugger, raise `lost_after`.
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

const FieldList<WorldOptions>& WorldOptions::fields() {
  static const FieldList<WorldOptions> list =
      FieldList<WorldOptions>("world")
          .add_choice("backend", &WorldOptions::backend_, {"auto", "threads", "shm", "gloo", "mpi", "nccl", "custom"},
                      "What carries tensors of the CPU; auto, and nccl, take shared memory inside a node and Gloo "
                      "between nodes.")
          .add("timeout", &WorldOptions::timeout_, "How long a call may take before it fails.")
          .add("init_timeout", &WorldOptions::init_timeout_, "How long to wait for the other ranks at the start.")
          .add_choice("strategy", &WorldOptions::strategy_, {"allreduce", "ring", "tree", "hierarchical", "adaptive"},
                      "The algorithm of the world's communicator.")
          .add("interface", &WorldOptions::interface_,
               "Network interface or address for Gloo; empty takes the one that reaches the rendezvous.")
          .add("secret_file", &WorldOptions::secret_file_,
               "File with the job's secret, as `tessera secret` writes it; empty: what TESSERA_SECRET_FILE names.")
          .add("tuning_file", &WorldOptions::tuning_file_,
               "Table of the adaptive strategy, as `tessera bench comm --write-table` writes it; empty: built in.")
          .add("lost_after", &WorldOptions::lost_after_,
               "A rank without a sign of life for so long is lost, and the job ends; 0 watches nobody.")
          .add("slow_after", &WorldOptions::slow_after_, "A wait that takes longer is looked into, and reported.")
          .add("checked", &WorldOptions::checked_,
               "Compare operation, shape and dtype across ranks before each collective.");
  return list;
}

namespace {

class ThreadsConnector : public comm::Connector {
 public:
  explicit ThreadsConnector(std::shared_ptr<comm::ThreadsShared> shared) : shared_(std::move(shared)) {}

  comm::Connection connect(const comm::ConnectRequest& request) override {
    return comm::connect_threads(request, shared_);
  }

 private:
  std::shared_ptr<comm::ThreadsShared> shared_;
};

}  // namespace

void run_threads(int num_ranks, const std::function<void(World)>& body, const WorldOptions& options,
                 int ranks_per_node) {
  if (num_ranks < 1) throw ConfigError("a world needs at least one rank, found " + std::to_string(num_ranks));
  if (options.backend() != "auto" && options.backend() != "threads") {
    throw ConfigError("ranks that are threads talk through memory; leave the backend \"auto\" instead of \"" +
                      options.backend() + "\"");
  }
  auto shared = std::make_shared<comm::ThreadsShared>();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(num_ranks));
  const auto run_rank = [&](int rank) {
    try {
      auto context = comm::make_context(options, rank, num_ranks);
      context->launcher = "threads";
      context->topology = Topology::blocks(num_ranks, ranks_per_node > 0 ? ranks_per_node : num_ranks);
      context->store = store;
      context->connector = std::make_shared<ThreadsConnector>(shared);
      body(World(std::make_shared<World::State>(std::move(context))));
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      int none = -1;
      shared->failed_rank.compare_exchange_strong(none, rank);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (auto& thread : threads) thread.join();
  const int first = shared->failed_rank.load();
  if (first >= 0) std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
}

CommBuild comm_build() {
  // What MPI says ends with a date and an address; the first part names the library.
  const std::string version = comm::mpi_version();
  return {comm::has_mpi(), comm::has_nccl(), version.substr(0, version.find_first_of(",\n"))};
}

// Note [The first call of a vector function]
// LibTorch computes sin, exp, log and others by MKL's vector functions, whose first call detects the CPU. MKL stores
// the result in two steps: first a number for the CPU, then the column of its tables for that number. A thread whose
// first call comes between the two steps picks a kernel of the lowest accuracy: sin of doubles is wrong by 7e-9, in
// this call alone (pytorch/pytorch#188792). Ranks that are threads begin together, as do the threads of one operator,
// and a run in which this happens cannot be repeated bit by bit. All vector functions share the stored result, so one
// call of one of them, made early, is enough.
void settle_math() {
  static std::once_flag once;
  std::call_once(once, [] { at::sin(at::zeros({1}, at::kDouble)); });
}

}  // namespace tessera
