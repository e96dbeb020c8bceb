// A rank whose peer is gone hears of it: Note [Connections that break]. What fails here ends the program.
#include "comm/gloo/process_group_gloo.h"

#include <tessera/core/descriptor.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo_backend.h"
#include "support/error_message.h"

namespace tessera::comm {
namespace {

/// A connection whose other end is closed.
class BrokenPipe {
 public:
  BrokenPipe() {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    close(ends[0]);
    writing_ = Descriptor(ends[1]);
  }
  /// The system's error.
  int write() const { return ::write(writing_.get(), "x", 1) < 0 ? errno : 0; }

 private:
  Descriptor writing_;
};

bool is_blocked_here() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGPIPE) == 1;
}

TEST(NoBrokenPipe, MakesAnErrorOfItAndLeavesNothingBehind) {
  const BrokenPipe pipe;
  {
    const NoBrokenPipe guard;
    EXPECT_EQ(pipe.write(), EPIPE);
    const NoBrokenPipe inner;
    EXPECT_EQ(pipe.write(), EPIPE);
  }
  EXPECT_FALSE(is_blocked_here());
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(NoBrokenPipe, StaysWithThreadsThatAreStartedMeanwhile) {
  const BrokenPipe pipe;
  std::thread thread;
  {
    const NoBrokenPipe guard;
    thread = std::thread([&pipe] { EXPECT_EQ(pipe.write(), EPIPE); });
  }
  thread.join();
}

std::set<std::string> threads() {
  std::set<std::string> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    numbers.insert(entry.path().filename().string());
  }
  return numbers;
}

bool is_blocked_in(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string word; status >> word;) {
    if (word != "SigBlk:") continue;
    status >> word;
    return (std::stoull(word, nullptr, 16) >> (SIGPIPE - 1) & 1U) != 0;
  }
  throw std::runtime_error("thread " + thread + " does not tell what it blocks");
}

TEST(NoBrokenPipe, HoldsForAllThreadsOfGloo) {
  const std::set<std::string> before = threads();
  ConnectRequest alone;
  alone.group = "alone";
  alone.store = c10::make_intrusive<c10d::HashStore>();
  const auto gloo = make_process_group_gloo(alone, "127.0.0.1");
  int num_new = 0;
  for (const std::string& thread : threads()) {
    if (before.contains(thread)) continue;
    ++num_new;
    EXPECT_TRUE(is_blocked_in(thread)) << "thread " << num_new;
  }
  EXPECT_GE(num_new, 2) << "who looks after connections, and who computes";
  EXPECT_FALSE(is_blocked_here());
}

/// Writes where Gloo does: in the call itself.
class BrokenBackend : public c10d::Backend {
 public:
  BrokenBackend() : c10d::Backend(0, 2) {}
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& /*tensors*/, int /*to*/, int /*tag*/) override {
    throw std::runtime_error(std::to_string(pipe_.write()));
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& /*tensors*/, int /*from*/, int /*tag*/) override {
    throw std::runtime_error(std::to_string(pipe_.write()));
  }

 private:
  BrokenPipe pipe_;
};

TEST(NoBrokenPipe, HoldsForMessagesOfTheCallingThread) {
  GlooTransport transport(c10::make_intrusive<BrokenBackend>());
  std::array<std::byte, 4> bytes{};
  const std::string broken = std::to_string(EPIPE);
  EXPECT_EQ(testing::message_of<std::runtime_error>([&] { transport.send(bytes, 1, 0); }), broken);
  EXPECT_EQ(testing::message_of<std::runtime_error>([&] { transport.recv(bytes, 1, 0); }), broken);
  EXPECT_FALSE(is_blocked_here());
}

}  // namespace
}  // namespace tessera::comm
