// A rank that does a few steps and then, if it is the victim, one of the things that go wrong in practice.
//   fault_rank FAULT VICTIM BACKEND TIMEOUT_SECONDS
// `steady` goes on until somebody ends it; with `counting` rank 0 says how far it came as well; `busy` computes for
// 20 s, which is no fault.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

/// The clock is the system's, so a driver can compare it with its own.
void announce() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("fault at %lld.%09ld in process %d\n", static_cast<long long>(now.tv_sec), now.tv_nsec,
              static_cast<int>(getpid()));
  std::fflush(stdout);
}

[[noreturn, gnu::noinline]] void spin() {
  volatile std::uint64_t count = 0;
  for (;;) count = count + 1;
}

void compute() {
  constexpr std::chrono::seconds kLong{20};
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (std::chrono::steady_clock::now() < end) at::mm(at::ones({64, 64}), at::ones({64, 64}));
}

void read_forever() {
  std::array<int, 2> pipe_ends{};
  char byte = 0;
  if (pipe(pipe_ends.data()) == 0 && read(pipe_ends[0], &byte, 1) < 0) std::perror("read");
}

/// What ends or holds up the process; nothing for a fault that is only another call.
void commit_alone(const std::string& fault) {
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop" || fault == "debug") raise(SIGSTOP);
  if (fault == "abort") std::abort();
  if (fault == "throw") throw std::runtime_error("the dog ate the batch");
  if (fault == "loop") spin();
  if (fault == "read") read_forever();
  if (fault == "slow") std::this_thread::sleep_for(std::chrono::seconds(7));
  if (fault == "busy") compute();
  if (fault == "exit") std::_Exit(0);
}

void step(const tessera::Communicator& comm, const std::string& fault) {
  at::Tensor gradient = at::ones({1024});
  if (fault == "skip") {
    comm.barrier();
    return;
  }
  if (fault == "operation") comm.broadcast(gradient, 0);
  if (fault == "shape") gradient = at::ones({512});
  if (fault == "dtype") gradient = at::ones({1024}, at::kLong);
  if (fault != "operation") {
    comm.all_reduce(gradient);  // the line that reports must name
  }
  comm.barrier();
}

[[noreturn]] void go_on(const tessera::World& world) {
  step(world.comm(), "");
  const char* generation = std::getenv("TORCHELASTIC_RESTART_COUNT");
  std::printf("rank %d of generation %s is process %d\n", world.rank(), generation == nullptr ? "0" : generation,
              static_cast<int>(getpid()));
  std::fflush(stdout);
  for (;;) step(world.comm(), "");
}

/// Steps of a small model: some work, then its gradient.
[[noreturn]] void count_steps(const tessera::World& world) {
  constexpr std::chrono::milliseconds kSayEvery{50};
  const at::Tensor weight = at::ones({256, 256});
  at::Tensor gradient = at::ones({1 << 16});
  auto said = std::chrono::steady_clock::now();
  for (std::int64_t steps = 1;; ++steps) {
    at::mm(weight, weight);
    world.comm().all_reduce(gradient);
    if (world.rank() != 0 || std::chrono::steady_clock::now() - said < kSayEvery) continue;
    said = std::chrono::steady_clock::now();
    std::printf("%lld steps\n", static_cast<long long>(steps));
    std::fflush(stdout);
  }
}

int run(const std::string& fault, int victim, const std::string& backend, int seconds) {
  if (fault == "absent" && std::to_string(victim) == std::getenv("RANK")) {
    announce();
    read_forever();
  }
  const auto world = tessera::init(tessera::WorldOptions()
                                       .backend(backend)
                                       .timeout(std::chrono::seconds(fault == "debug" ? 60 : seconds))
                                       .lost_after(std::chrono::seconds(fault == "debug" ? 60 : 5))
                                       .init_timeout(std::chrono::seconds(fault == "absent" ? 4 : 60)));
  if (fault == "steady") go_on(world);
  if (fault == "counting") count_steps(world);
  for (int i = 0; i < 3; ++i) step(world.comm(), "");
  const bool is_victim = world.rank() == victim;
  if (is_victim) {
    announce();
    commit_alone(fault);
  }
  step(world.comm(), is_victim ? fault : "");
  std::printf("rank %d is done\n", world.rank());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: fault_rank FAULT VICTIM BACKEND TIMEOUT_SECONDS\n");
    return 2;
  }
  at::set_num_threads(1);
  if (std::string(argv[1]) == "throw") return run(argv[1], std::stoi(argv[2]), argv[3], std::stoi(argv[4]));
  try {
    return run(argv[1], std::stoi(argv[2]), argv[3], std::stoi(argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::exit_code(error);
  }
}
