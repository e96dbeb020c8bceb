// Ranks of one machine that take themselves for ranks on several nodes.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "comm/process/roles.h"
#include "support/require_tensors.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

std::vector<int> numbers_in(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) numbers.push_back(std::stoi(item));
  return numbers;
}

void set(const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); }

/// Tells this process what a launcher would that put rank r on node nodes[r].
void place(const std::vector<int>& nodes) {
  const int rank = std::stoi(getenv("RANK"));
  const int node = nodes[static_cast<std::size_t>(rank)];
  set("NODE_RANK", node);
  set("LOCAL_RANK", std::count(nodes.begin(), nodes.begin() + rank, node));
  set("LOCAL_WORLD_SIZE", std::count(nodes.begin(), nodes.end(), node));
}

void check_topology(const World& world, const std::vector<int>& nodes) {
  for (int rank = 0; rank < world.size(); ++rank) {
    require_equal(
        world.topology().node_of(rank), nodes[static_cast<std::size_t>(rank)],
        "rank " + std::to_string(rank) + " is thought to be on node " + std::to_string(world.topology().node_of(rank)));
  }
  require_equal(world.num_nodes(), *std::max_element(nodes.begin(), nodes.end()) + 1, "the number of nodes is wrong");
  require_equal(world.local_size(), std::count(nodes.begin(), nodes.end(), world.node()), "the local size is wrong");
}

void check_sums(const Communicator& comm) {
  const int size = comm.size();
  for (const auto strategy : {CommunicationStrategy::kBackend, CommunicationStrategy::kHierarchical,
                              CommunicationStrategy::kAdaptive, CommunicationStrategy::kRing}) {
    const auto with = comm.with_strategy(strategy);
    const std::string what(to_string(strategy));
    for (const std::int64_t count : {1, 7, 40'000}) {
      at::Tensor sum = at::full({count}, comm.rank() + 1.0F);
      with.all_reduce(sum);
      require_equal(sum, at::full({count}, size * (size + 1) / 2.0F), "wrong all_reduce by " + what);
    }
    const at::Tensor order = with.all_gather(at::full({comm.rank() + 1}, comm.rank(), at::kInt), 0, {1, 2, 3, 4});
    std::vector<int> expected;
    for (int rank = 0; rank < size; ++rank) expected.insert(expected.end(), static_cast<std::size_t>(rank) + 1, rank);
    require_equal(order, at::tensor(expected, at::kInt), "wrong all_gather by " + what);
    const at::Tensor piece = with.reduce_scatter(at::arange(10, at::kFloat), ReduceOp::kAvg, 0, {1, 2, 3, 4});
    const std::int64_t begin = comm.rank() * (comm.rank() + 1) / 2;
    require(at::allclose(piece, at::arange(10, at::kFloat).narrow(0, begin, comm.rank() + 1)),
            "wrong reduce_scatter by " + what);
    at::Tensor sent = at::full({5}, comm.rank(), at::kLong);
    with.broadcast(sent, size - 1);
    require_equal(sent[4].item<int>(), size - 1, "wrong broadcast by " + what);
    with.barrier();
  }
}

/// Blocks: until all ranks have come. For ranks that cannot talk.
void meet_in(const std::filesystem::path& folder, const World& world) {
  std::ofstream(folder / std::to_string(world.rank())).flush();
  for (int rank = 0; rank < world.size(); ++rank) {
    for (int i = 0; !std::filesystem::exists(folder / std::to_string(rank)); ++i) {
      require(i < 3000, "rank " + std::to_string(rank) + " does not come");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace

/// Arguments: the node of each rank; "placed" in front when the launcher has set them already.
void check_nodes(const Arguments& arguments) {
  const auto nodes = numbers_in(arguments.back());
  if (arguments.front() != "placed") place(nodes);
  const World world = init();
  check_topology(world, nodes);
  require_equal(world.comm().backend(), "gloo", "between nodes the backend is " + world.comm().backend());
  const auto inside = world.comm().split_by([&](int rank) { return world.topology().node_of(rank); }, "node");
  require_equal(inside.backend(), "shm", "inside a node the backend is " + inside.backend());
  at::Tensor sum = at::ones({3}, at::kLong);
  inside.all_reduce(sum);
  require_equal(sum[0].item<int>(), world.local_size(), "the ranks of the node are not those of the group");
  check_sums(world.comm());
}

/// Arguments: the node of each rank, a folder in which they meet.
void check_one_node_only(const Arguments& arguments) {
  place(numbers_in(arguments.at(0)));
  const World world = init(WorldOptions().backend("shm"));
  try {
    world.comm().barrier();
  } catch (const ConfigError& error) {
    require(std::string(error.what()).find("spans several") != std::string::npos, error.what());
    // Rank 0 holds the store that the others may still be reading.
    meet_in(arguments.at(1), world);
    return;
  }
  throw std::runtime_error("shared memory between nodes was not refused");
}

namespace {

/// Between hosts there must be a secret.
launch::LocalJob nodes_job(int num_ranks, const std::string& role, const Arguments& arguments) {
  auto job = job_of(num_ranks, role, arguments);
  job.variables["TESSERA_SECRET"] = store::Secret::mint().hex();
  return job;
}

TEST(Nodes, InBlocksUseSharedMemoryInsideAndGlooBetween) {
  auto job = nodes_job(4, "nodes", {"placed", "0,0,1,1"});
  job.ranks_per_node = 2;
  expect_success(job);
}

TEST(Nodes, DealtInTurnsAreFound) { expect_success(nodes_job(4, "nodes", {"0,1,0,1"})); }

TEST(Nodes, OfAnyShapeAreFound) {
  for (const char* nodes : {"0,0,1,0", "1,0,0,1", "0,1,2,0"}) {
    SCOPED_TRACE(nodes);
    expect_success(nodes_job(4, "nodes", {nodes}));
  }
}

TEST(Nodes, AreNotSpannedBySharedMemory) {
  const TemporaryFolder folder;
  expect_success(nodes_job(2, "one_node_only", {"0,1", folder.path().string()}));
}

}  // namespace
}  // namespace tessera::testing
