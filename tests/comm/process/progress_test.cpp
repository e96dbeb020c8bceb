#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/process/roles.h"
#include "support/mpi_job.h"
#include "support/require_tensors.h"
#include "support/temporary_file.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kReducedCount = std::int64_t{4} << 20;

/// Blocks without a call of the library: nothing moves on by accident.
void wait_for_text_in(const std::string& path) {
  for (int i = 0; i < 2000; ++i) {
    if (std::filesystem::file_size(path) > 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error("the message did not arrive while its sender did not wait");
}

}  // namespace

/// Arguments: the backend and a file through which the receiver tells that it has the message.
void check_progress(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  const Communicator& comm = world.comm();
  comm.barrier();
  if (world.rank() == 0) {
    Work work = comm.send_async(at::full({kReducedCount}, 7.0F), 1);
    wait_for_text_in(arguments.at(1));
    work.wait();
  } else {
    require_equal(comm.recv({kReducedCount}, at::kFloat, 0), at::full({kReducedCount}, 7.0F), "the message is wrong");
    std::ofstream(arguments.at(1)) << "done";
  }
  comm.barrier();
}

/// Arguments: the backend.
void check_dropped_sends(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).timeout(std::chrono::seconds(8)));
  const Communicator& comm = world.comm();
  const int other = 1 - world.rank();
  for (int i = 0; i < 3; ++i) comm.send_async(at::full({kReducedCount}, world.rank() + i * 1.0F), other);
  for (int i = 0; i < 3; ++i) {
    require_equal(comm.recv({kReducedCount}, at::kFloat, other), at::full({kReducedCount}, other + i * 1.0F),
                  "message " + std::to_string(i) + " is wrong");
  }
  comm.barrier();
}

/// A receive is dropped in the middle of its message, which goes through a bounce buffer in many pieces.
void check_dropped_receive(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).timeout(std::chrono::seconds(8)));
  const Communicator& comm = world.comm();
  if (world.rank() == 0) {
    Work first = comm.send_async(at::zeros({kReducedCount}, at::kInt), 1);
    comm.barrier();
    comm.send(at::arange(kReducedCount, at::kInt), 1);
    first.wait();
  } else {
    comm.barrier();  // some pieces are there
    comm.recv_async(at::empty({kReducedCount}, at::kInt), 0);
    require_equal(comm.recv({kReducedCount}, at::kInt, 0), at::arange(kReducedCount, at::kInt),
                  "the messages are mixed");
  }
  comm.barrier();
}

/// Messages that nobody takes: the ranks must be able to leave all the same.
void check_unreceived(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).timeout(std::chrono::seconds(2)));
  world.comm().barrier();
  for (int i = 0; i < 3; ++i) world.comm().send_async(at::ones({kReducedCount}), 1 - world.rank());
}

/// Rank 1 is gone when rank 0 sends: each send may fail, dropping it must not.
void check_sends_to_nobody(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)).timeout(std::chrono::seconds(2)));
  world.comm().barrier();
  for (int i = 0; world.rank() == 0 && i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    try {
      world.comm().send_async(at::ones({kReducedCount}), 1);
    } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): as good as any other way to end
    }
  }
}

namespace {

TEST(Progress, SharedMemoryDeliversThoughTheSenderDoesNotWait) {
  const TemporaryFile file("");
  expect_success(job_of(2, "progress", {"shm", file.path()}));
}

TEST(Progress, GlooDeliversThoughTheSenderDoesNotWait) {
  const TemporaryFile file("");
  expect_success(job_of(2, "progress", {"gloo", file.path()}));
}

TEST(Progress, MpiDeliversThoughTheSenderDoesNotWait) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  const TemporaryFile file("");
  expect_success(mpi_job_of(2, "progress", {"mpi", file.path()}));
}

TEST(Progress, AReceiveThatIsDroppedTakesItsOwnMessage) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_success(job_of(2, "dropped_receive", {backend}));
  }
}

TEST(Progress, MessagesThatNobodyTakesKeepNobodyFromLeaving) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    auto job = job_of(2, "unreceived", {backend});
    job.timeout = std::chrono::seconds(20);
    expect_success(job);
  }
}

TEST(Progress, DroppedSendsToALostRankDoNotEndTheProgram) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_success(job_of(2, "sends_to_nobody", {backend}));
  }
}

TEST(Progress, SendsThatAreDroppedArriveOnSharedMemory) { expect_success(job_of(2, "dropped_sends", {"shm"})); }

TEST(Progress, SendsThatAreDroppedArriveOnGloo) { expect_success(job_of(2, "dropped_sends", {"gloo"})); }

TEST(Progress, SendsThatAreDroppedArriveOnMpi) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_success(mpi_job_of(2, "dropped_sends", {"mpi"}));
}

}  // namespace
}  // namespace tessera::testing
