#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <optional>

#include "comm/process/roles.h"
#include "comm/process/segment_inspection.h"
#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kTensorCount = std::int64_t{16} << 20;
constexpr std::size_t kTensorBytes = kTensorCount * sizeof(float);

void check_pages_return(const Communicator& comm) {
  // The file is that of all ranks: nobody measures while another one allocates or frees.
  comm.barrier();
  const std::size_t before = segment_of().resident_bytes;
  comm.barrier();
  {
    const at::Tensor tensor = comm.empty({kTensorCount}).fill_(1);
    comm.barrier();
    require(segment_of().resident_bytes >= before + 2 * kTensorBytes,
            "the pages of two tensors are not in the segment");
    comm.barrier();
  }
  comm.barrier();
  require(segment_of().resident_bytes < before + kTensorBytes / 4, "the pages did not return to the system");
  comm.barrier();
}

void check_zero_copy(const Communicator& comm) {
  at::Tensor shared = comm.empty({3, kTensorCount / 4}, at::kFloat);
  require(comm.is_zero_copy(shared), "memory of the communicator should be reached");
  require(comm.is_zero_copy(shared.narrow(0, 1, 2)), "so should a slice of it");
  require(!comm.is_zero_copy(shared.t()), "a strided tensor goes through a copy");
  require(!comm.is_zero_copy(at::ones({10})), "other memory goes through staging");
  shared.fill_(comm.rank() + 1.0F);
  comm.all_reduce(shared);
  require_equal(shared, at::full_like(shared, 3.0F), "the sum is wrong");
  require_equal(comm.empty({0}).numel(), 0, "nothing is a size too");
  require_equal(comm.empty({2, 5}, at::kHalf).scalar_type(), at::kHalf, "the type is wrong");
}

}  // namespace

/// Arguments: "tiny" when /dev/shm should be too small for anything.
void check_memory(const Arguments& arguments) {
  if (!arguments.empty()) {
    struct statvfs status{};
    require(statvfs("/dev/shm", &status) == 0 && status.f_blocks * status.f_frsize <= 1 << 20, "/dev/shm is large");
  }
  std::optional<at::Tensor> survivor;
  {
    const World world = init(WorldOptions().backend("shm"));
    check_zero_copy(world.comm());
    check_pages_return(world.comm());
    try {
      world.comm().empty({std::int64_t{1} << 45});
      require(false, "more memory than there is was handed out");
    } catch (const StorageError& error) {
      require(std::string(error.what()).find(std::to_string(std::int64_t{1} << 47)) != std::string::npos, error.what());
    }
    survivor = world.comm().empty({100}).fill_(7);
    world.comm().barrier();
  }
  require_equal(survivor->sum().item<float>(), 700, "a tensor should outlive the world");
}

namespace {

/// `job` with each rank in a mount namespace of its own whose /dev/shm holds 1 MB.
launch::LocalJob with_tiny_shm(launch::LocalJob job) {
  job.command.insert(job.command.begin(),
                     {"unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$@\"", "sh"});
  return job;
}

TEST(Memory, OfACommunicatorIsReachedWithoutACopyAndReturns) { expect_success(job_of(2, "memory")); }

TEST(Memory, DoesNotDependOnTheSizeOfDevShm) {
  launch::LocalJob probe;
  probe.command = {"true"};
  if (launch::run(with_tiny_shm(probe)).front().exit_code != 0) {
    GTEST_SKIP() << "this user may not mount in a namespace of its own";
  }
  expect_success(with_tiny_shm(job_of(2, "memory", {"tiny"})));
}

}  // namespace
}  // namespace tessera::testing
