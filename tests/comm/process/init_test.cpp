#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/process/roles.h"
#include "support/error_message.h"
#include "support/mpi_job.h"

namespace tessera::testing {

/// Arguments: the time to wait for the others, in milliseconds.
void check_init(const Arguments& arguments) {
  const World world = init(WorldOptions().init_timeout(std::chrono::milliseconds(std::stoi(arguments.at(0)))));
  world.comm().barrier();
}

void check_init_only(const Arguments& /*arguments*/) { init(); }

namespace {

/// A port that somebody listens on.
class BusyPort {
 public:
  BusyPort() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (bind(descriptor_, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(descriptor_, 8) == 0) {
      getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
    }
    number_ = ntohs(address.sin_port);
  }
  ~BusyPort() { close(descriptor_); }
  BusyPort(const BusyPort&) = delete;
  BusyPort& operator=(const BusyPort&) = delete;

  int number() const { return number_; }

 private:
  int descriptor_;
  int number_ = 0;
};

TEST(Init, TellsHowManyRanksCameWhenOneIsMissing) {
  auto job = job_of(2, "init", {"1000"});
  job.variables["WORLD_SIZE"] = "3";
  job.variables["LOCAL_WORLD_SIZE"] = "3";
  const auto start = std::chrono::steady_clock::now();
  const auto results = launch::run(job);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, kCommError) << "rank " << rank << ":\n" << results[rank].output;
    expect_parts(results[rank].output, {"2 of 3 ranks came within 1000 ms"});
  }
}

TEST(Init, TellsWhereNobodyListensWhenRankZeroIsMissing) {
  auto job = job_of(1, "init", {"700"});
  job.variables = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  const auto result = launch::run(job).front();
  EXPECT_EQ(result.exit_code, kCommError) << result.output;
  expect_parts(result.output, {"the store at 127.0.0.1:", "was not reached within 700 ms", "rank 0"});
}

TEST(Init, RefusesAPortThatIsInUse) {
  const BusyPort busy;
  auto job = job_of(1, "init", {"2000"});
  job.variables = {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", std::to_string(busy.number())}};
  const auto result = launch::run(job).front();
  EXPECT_EQ(result.exit_code, kConfigError) << result.output;
  expect_parts(result.output, {"cannot listen on 127.0.0.1:" + std::to_string(busy.number()), "in use", "MASTER_PORT"});
}

TEST(Init, RefusesAnAddressThatIsNotOfThisHost) {
  auto job = job_of(1, "init", {"1000"});
  job.variables = {{"WORLD_SIZE", "2"},
                   {"LOCAL_WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "192.0.2.1"},
                   {"TESSERA_SECRET", store::Secret::mint().hex()}};
  const auto result = launch::run(job).front();
  EXPECT_EQ(result.exit_code, kConfigError) << result.output;
  expect_parts(result.output, {"cannot listen on 192.0.2.1", "MASTER_ADDR"});
}

TEST(Init, RefusesContradictoryVariables) {
  auto job = job_of(1, "init", {"1000"});
  job.variables = {{"RANK", "5"}, {"WORLD_SIZE", "2"}};
  const auto result = launch::run(job).front();
  EXPECT_EQ(result.exit_code, kConfigError) << result.output;
  expect_parts(result.output, {"rank 5", "world of 2"});
}

TEST(Init, RanksMayLeaveAtOnce) {
  // Rank 0 holds the store: its leaving must not fail a slower rank's init.
  for (int round = 0; round < 5; ++round) expect_success(job_of(3, "init_only"));
}

TEST(Init, AloneNeedsNoRendezvous) {
  auto job = job_of(1, "init", {"1000"});
  job.launcher_variables = false;
  expect_success(job);
}

TEST(Init, ReadsMpirunWithoutAnAddress) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_success(mpi_job_of(3, "init", {"20000"}));
}

}  // namespace
}  // namespace tessera::testing
