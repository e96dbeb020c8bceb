#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

#include "comm/process/roles.h"
#include "comm/process/segment_inspection.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kVictim = 1;

void call_until_lost(const Communicator& comm, const std::string& operation) {
  const auto size = operation.ends_with("big") ? std::int64_t{2} << 20 : std::int64_t{16};
  // The other survivor has given up before this one calls.
  if (operation == "late" && comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(800));
  if (operation.starts_with("all_reduce") || operation == "late") comm.all_reduce(at::ones({size}));
  if (operation == "zero_copy") comm.all_reduce(comm.empty({1 << 20}));
  if (operation == "barrier") comm.barrier();
  if (operation == "async") comm.all_reduce_async(at::ones({size})).wait();
  if (operation == "recv") comm.recv({4}, at::kFloat, kVictim);
  if (operation.starts_with("send")) comm.send(at::ones({size}), kVictim);
  if (operation == "ring") comm.with_strategy(CommunicationStrategy::kRing).all_reduce(at::ones({size}));
  if (operation == "tree") comm.with_strategy(CommunicationStrategy::kTree).all_reduce(at::ones({size}));
}

}  // namespace

/// Arguments: what the others do when rank 1 is killed.
void check_loss(const Arguments& arguments) {
  const World world = init(WorldOptions().backend("shm"));
  const Communicator& comm = world.comm();
  const at::Tensor processes = comm.all_gather(at::full({1}, getpid(), at::kLong));
  const at::Tensor held = comm.empty({4 << 20}).fill_(1);  // memory that the dead cannot free
  comm.barrier();
  std::printf("segment %llu\n", static_cast<unsigned long long>(segment_of().inode));
  std::fflush(stdout);
  if (world.rank() == kVictim) raise(SIGKILL);
  const auto start = Clock::now();
  try {
    call_until_lost(comm, arguments.at(0));
  } catch (const CommError& error) {
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    const std::string text = error.what();
    const std::string victim = "rank 1 (process " + std::to_string(processes[kVictim].item<int>()) + ")";
    std::printf("took %f\n", took);
    require(text.find(victim) != std::string::npos, victim + " is missing in: " + text);
    require(text.find("loss_test.cpp") != std::string::npos, "the line is missing in: " + text);
    return;
  }
  throw std::runtime_error("the call_until_lost returned");
}

namespace {

/// Names in /dev/shm, but for those that an MPI of somebody else makes meanwhile.
std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with("vader_segment")) names.insert(name);
  }
  return names;
}

double number_behind(const std::string& word, const std::string& output) {
  const auto at = output.find(word);
  if (at != std::string::npos) return std::strtod(output.c_str() + at + word.size(), nullptr);
  ADD_FAILURE() << "no \"" << word << "\" in: " << output;
  return 0;
}

/// The longest that a survivor waited, in seconds.
double notice(const std::string& operation) {
  const auto before = shared_files();
  const auto results = launch::run(job_of(3, "loss", {operation}));
  double longest = 0;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, rank == kVictim ? 128 + SIGKILL : 0) << operation << ", rank " << rank << ":\n"
                                                                            << results[rank].output;
    EXPECT_FALSE(is_held(ino_t(number_behind("segment ", results[rank].output)))) << "the segment outlives its ranks";
    if (rank != kVictim) longest = std::max(longest, number_behind("took ", results[rank].output));
  }
  EXPECT_EQ(shared_files(), before);
  return longest;
}

/// A host that takes the cores away can make one notice late, but hardly three in a row.
void expect_noticed(const std::string& operation) {
  double fastest = notice(operation);
  for (int again = 0; again < 2 && fastest >= 1; ++again) fastest = std::min(fastest, notice(operation));
  EXPECT_LT(fastest, 1) << operation << ": seconds until the last survivor noticed, in the fastest of three tries";
}

TEST(Loss, FailsCollectivesWithinASecondAndLeavesNothing) {
  for (const char* operation : {"all_reduce", "all_reduce_big", "zero_copy", "barrier", "async"}) {
    expect_noticed(operation);
  }
}

TEST(Loss, IsNamedToARankThatCallsWhenAnotherHasGivenUp) { notice("late"); }

TEST(Loss, FailsMessagesWithinASecondAndLeavesNothing) {
  for (const char* operation : {"recv", "send_big"}) expect_noticed(operation);
}

TEST(Loss, FailsAlgorithmsOverMessagesWithinASecond) {
  for (const char* operation : {"ring", "tree"}) expect_noticed(operation);
}

}  // namespace
}  // namespace tessera::testing
