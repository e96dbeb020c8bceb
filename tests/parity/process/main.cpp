// The same trainings with ranks as processes: a covering subset on every backend.
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>

#include <gtest/gtest.h>

#include "parity/reproducible.h"
#include "parity/reproducible_sharded.h"
#include "parity/sharded.h"
#include "parity/training.h"
#include "support/mpi_job.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr int kReproducibleSteps = 50;

World world_on(const std::string& backend) {
  const World world = init(WorldOptions().backend(backend));
  require_equal(world.comm().backend(), backend, "the backend is " + world.comm().backend());
  return world;
}

/// BACKEND MODEL OPTIMIZER DTYPE: every variant.
void check_parity(const Arguments& arguments) {
  const World world = world_on(arguments.at(0));
  const ParityCase parity{.model = arguments.at(1),
                          .optimizer = arguments.at(2),
                          .dtype = arguments.at(3) == "float" ? torch::kFloat : torch::kDouble,
                          .num_ranks = world.size()};
  const State expected = train_alone(parity);
  for (const auto& variant : parity_variants()) {
    if (variant == "reproducible" && parity.model == "conv") continue;
    require_equal(train_distributed(parity, variant, world.comm()), expected, parity, variant);
  }
}

/// BACKEND MODEL OPTIMIZER DTYPE MICRO_BATCHES: every way of sharding.
void check_sharded(const Arguments& arguments) {
  const World world = world_on(arguments.at(0));
  const ParityCase parity{.model = arguments.at(1),
                          .optimizer = arguments.at(2),
                          .dtype = arguments.at(3) == "float" ? torch::kFloat : torch::kDouble,
                          .num_ranks = world.size(),
                          .micro_batches = std::stoi(arguments.at(4))};
  const State expected = train_alone(parity);
  for (const auto& variant : sharded_variants()) {
    require_equal(train_sharded(parity, variant, world.comm()), expected, parity, variant);
  }
}

/// BACKEND HASH: the weights' hash is that one.
void check_reproducible(const Arguments& arguments) {
  const World world = world_on(arguments.at(0));
  const auto hash = train_reproducibly(world.comm(), kReproducibleSteps, {.seed = 7, .delays = 0.05});
  require_equal(std::to_string(hash), arguments.at(1),
                "the hash is " + std::to_string(hash) + ", not " + arguments.at(1));
}

/// BACKEND VARIANT HASH: the same with the model in shards.
void check_reproducible_sharded(const Arguments& arguments) {
  const World world = world_on(arguments.at(0));
  const auto hash =
      train_reproducibly_sharded(world.comm(), kReproducibleSteps, arguments.at(1), {.seed = 9, .delays = 0.01});
  require_equal(std::to_string(hash), arguments.at(2),
                "the hash is " + std::to_string(hash) + ", not " + arguments.at(2));
}

/// BACKEND EXPECTED: whether the buckets lie where the other ranks reach them, also after they were arranged anew.
void check_buckets(const Arguments& arguments) {
  const World world = world_on(arguments.at(0));
  const auto model = make_parity_model("gpt", torch::kFloat);
  const auto ddp = distribute(model, world, DdpOptions().bucket_bytes(2048));
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    model->loss(model->forward(model->input(step, world.rank())), step, world.rank()).backward();
    require(ddp.statistics().num_buckets > 1, "several buckets");
    require_equal(ddp.statistics().buckets_are_zero_copy, (arguments.at(1) == "zero_copy"), "where they lie");
  }
}

launch::LocalJob with_long_timeout(launch::LocalJob job) {
  job.timeout = std::chrono::seconds(150);
  return job;
}

const std::vector<Arguments>& covering_subset() {
  static const std::vector<Arguments> cases{
      {"gpt", "sgd", "float"}, {"conv", "sgd", "double"}, {"lstm", "adamw", "double"}};
  return cases;
}

void expect_parity_on(const std::string& backend, int num_ranks) {
  for (const auto& one : covering_subset()) {
    Arguments arguments{backend};
    arguments.insert(arguments.end(), one.begin(), one.end());
    expect_success(with_long_timeout(backend == "mpi" ? mpi_job_of(num_ranks, "parity", arguments)
                                                      : job_of(num_ranks, "parity", arguments)));
  }
}

TEST(DdpParityProcesses, OnGloo) { expect_parity_on("gloo", 2); }
TEST(DdpParityProcesses, OnSharedMemory) { expect_parity_on("shm", 2); }
TEST(DdpParityProcesses, OnSharedMemoryWith4Ranks) { expect_parity_on("shm", 4); }
TEST(DdpParityProcesses, OnMpi) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_parity_on("mpi", 2);
}

/// Two ranks; three, among which nothing divides evenly; four, in two replicas of two where a variant asks for it.
class ShardedParityProcesses : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(ShardedParityProcesses, TrainAsOneProcess) {
  const auto& [backend, num_ranks] = GetParam();
  if (backend == "mpi" && std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  static const std::map<int, Arguments> cases{{2, {"gpt2", "sgd", "float", "1"}},
                                              {3, {"transformer", "adamw", "double", "1"}},
                                              {4, {"conv", "sgd", "double", "2"}}};
  Arguments arguments{backend};
  const Arguments& one = cases.at(num_ranks);
  arguments.insert(arguments.end(), one.begin(), one.end());
  expect_success(with_long_timeout(backend == "mpi" ? mpi_job_of(num_ranks, "sharded", arguments)
                                                    : job_of(num_ranks, "sharded", arguments)));
}

INSTANTIATE_TEST_SUITE_P(Backends, ShardedParityProcesses,
                         ::testing::Combine(::testing::Values("gloo", "shm", "mpi"), ::testing::Values(2, 3, 4)),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "With" + std::to_string(std::get<1>(one.param));
                         });

TEST(DdpBuckets, LieInSharedMemory) { expect_success(job_of(2, "buckets", {"shm", "zero_copy"})); }
TEST(DdpBuckets, LieInOrdinaryMemoryElsewhere) { expect_success(job_of(2, "buckets", {"gloo", "ordinary"})); }

class ReproducibleProcesses : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(ReproducibleProcesses, GiveTheHashOfOneProcess) {
  std::uint64_t expected = 0;
  run_threads(1, [&](const World& world) { expected = train_reproducibly(world.comm(), kReproducibleSteps); });
  const auto& [backend, num_ranks] = GetParam();
  const Arguments arguments{backend, std::to_string(expected)};
  expect_success(with_long_timeout(job_of(num_ranks, "reproducible", arguments)));
}

INSTANTIATE_TEST_SUITE_P(Backends, ReproducibleProcesses,
                         ::testing::Combine(::testing::Values("gloo", "shm"), ::testing::Values(1, 2, 4, 8)),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "With" + std::to_string(std::get<1>(one.param));
                         });

class ReproducibleShardedProcesses : public ::testing::TestWithParam<std::tuple<std::string, int, std::string>> {};

TEST_P(ReproducibleShardedProcesses, GiveTheHashOfDdpInOneProcess) {
  std::uint64_t expected = 0;
  run_threads(1, [&](const World& world) { expected = train_reproducibly(world.comm(), kReproducibleSteps); });
  const auto& [backend, num_ranks, variant] = GetParam();
  expect_success(
      with_long_timeout(job_of(num_ranks, "reproducible_sharded", {backend, variant, std::to_string(expected)})));
}

INSTANTIATE_TEST_SUITE_P(Backends, ReproducibleShardedProcesses,
                         ::testing::Values(std::tuple("gloo", 2, "full"), std::tuple("gloo", 4, "hybrid"),
                                           std::tuple("shm", 2, "zero1"), std::tuple("shm", 4, "full")),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "With" + std::to_string(std::get<1>(one.param)) +
                                  std::get<2>(one.param);
                         });

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  namespace t = tessera::testing;
  return t::run_tests_or_role(argc, argv,
                              {{"buckets", t::check_buckets},
                               {"parity", t::check_parity},
                               {"reproducible", t::check_reproducible},
                               {"reproducible_sharded", t::check_reproducible_sharded},
                               {"sharded", t::check_sharded}});
}
