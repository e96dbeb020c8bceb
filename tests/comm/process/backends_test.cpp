#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "comm/process/roles.h"
#include "support/mpi_job.h"
#include "support/require_tensors.h"
#include "support/temporary_folder.h"

namespace tessera::testing {

/// Averages of parameters, as a trainer makes them: contiguous or not, they are leaves that require gradients.
void check_averages(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  const Communicator& comm = world.comm();
  at::Tensor parameter = at::full({4, 2}, world.rank() + 1.0F).requires_grad_();
  comm.all_reduce(parameter, ReduceOp::kAvg);
  require_equal(parameter.sum().item<float>(), 12, "the average is wrong");
  comm.reduce(parameter, 0, ReduceOp::kAvg);
  comm.broadcast(parameter, 1);
  require(parameter.is_leaf() && parameter.requires_grad(), "the parameter is no longer a leaf");
  require(!comm.all_gather(parameter).requires_grad(), "a gathered tensor has a graph");
  require(!comm.reduce_scatter(parameter, ReduceOp::kAvg).requires_grad(), "a scattered tensor has a graph");
  require(!comm.all_to_all(parameter).requires_grad(), "an exchanged tensor has a graph");
  at::Tensor turned = at::ones({3, 2}).t().requires_grad_();
  comm.all_reduce(turned, ReduceOp::kAvg);
  require_equal(turned.sum().item<float>(), 6, "the strided average is wrong");
}

/// A boolean has no value 2, on whatever backend.
void check_booleans(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  at::Tensor any = at::ones({3}, at::kBool);
  world.comm().all_reduce(any);
  require_equal(any.view(at::kByte), at::ones({3}, at::kByte), "true and true is not true");
}

/// MPI knows one process, and would end the program when asked for two.
void check_mpi_alone(const Arguments& arguments) {
  // A folder of its own: Open MPI fails when two processes that it has not started make theirs at the same time.
  const auto folder = std::filesystem::path(arguments.at(0)) / std::getenv("RANK");
  std::filesystem::create_directory(folder);
  setenv("OMPI_MCA_orte_tmpdir_base", folder.c_str(), 1);
  try {
    const World world = init(WorldOptions().backend("mpi"));
    world.comm().barrier();
  } catch (const ConfigError& error) {
    require(std::string(error.what()).find("Start the program with mpirun") != std::string::npos, error.what());
    return;
  }
  throw std::runtime_error("MPI was taken for one that knows both ranks");
}

namespace {

void call(const Communicator& comm, const std::string& operation) {
  if (operation == "all_reduce") comm.all_reduce(at::ones({4}));
  if (operation == "average") comm.all_reduce(at::ones({4}), ReduceOp::kAvg);
  if (operation == "all_gather") comm.all_gather(at::ones({4}));
  if (operation == "uneven") comm.all_gather(at::ones({comm.rank() + 1}), 0, {1, 2});
  if (operation == "reduce_scatter") comm.reduce_scatter(at::ones({4}));
  if (operation == "barrier") comm.barrier();
  if (operation == "recv") comm.recv({4}, at::kFloat, 1);
  if (operation == "async") comm.all_reduce_async(at::ones({4})).wait();
  if (operation == "tree") comm.with_strategy(CommunicationStrategy::kTree).all_reduce(at::ones({4}));
}

void expect_timeout(const Communicator& comm, const std::string& operation) {
  const auto start = std::chrono::steady_clock::now();
  try {
    call(comm, operation);
  } catch (const CommError& error) {
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    require(took < 2, operation + " took " + std::to_string(took) + " s");
    require(std::string(error.what()).find("backends_test.cpp") != std::string::npos, error.what());
    return;
  }
  throw std::runtime_error(operation + " returned");
}

}  // namespace

/// Rank 1 does not come; rank 0 shall not wait longer than its timeout. Each operation in a group of its own: Gloo
/// closes one that has seen a timeout.
void check_gloo_timeout(const Arguments& arguments) {
  const World world = init(WorldOptions().backend("gloo"));
  std::vector<Communicator> groups;
  for (const auto& operation : arguments) {
    groups.push_back(world.comm().split({0, 1}, operation));
    groups.back().barrier();
  }
  for (std::size_t i = 0; world.rank() == 0 && i < groups.size(); ++i) {
    expect_timeout(groups[i].with_timeout(std::chrono::milliseconds(400)), arguments[i]);
  }
  // Rank 1 stays so that rank 0 meets a deadline, not a closed connection.
  world.comm().barrier();
}

namespace {

TEST(ProcessBackends, AverageParametersThatRequireGradients) {
  for (const char* backend : {"gloo", "shm"}) {
    SCOPED_TRACE(backend);
    expect_success(job_of(2, "averages", {backend}));
  }
}

TEST(ProcessBackends, SumBooleansToBooleans) {
  for (const char* backend : {"gloo", "shm"}) {
    SCOPED_TRACE(backend);
    expect_success(job_of(2, "booleans", {backend}));
  }
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_success(mpi_job_of(2, "booleans", {"mpi"}));
}

TEST(ProcessBackends, RefuseMpiInProcessesThatItHasNotStarted) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  const TemporaryFolder folder;
  expect_success(job_of(2, "mpi_alone", {folder.path().string()}));
}

TEST(Gloo, KeepsTheDeadlineOfEveryOperation) {
  expect_success(
      job_of(2, "gloo_timeout",
             {"all_reduce", "average", "all_gather", "uneven", "reduce_scatter", "barrier", "recv", "async", "tree"}));
}

}  // namespace
}  // namespace tessera::testing
