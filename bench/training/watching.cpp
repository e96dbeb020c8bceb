// What watching costs a step: bench_watching ROUNDS FOLDER, one process a rank. In each round the same steps are made
// with and without an observer of everything: progress line, JSON, TensorBoard, Prometheus and trace. Rank 0 prints a
// line of JSON a round, and one of what single calls cost. They end with their input.
//
// A step is 10 spans of matrix products, some 100 ms of them, and 64 small all-reduces, half of them in the background.
#include <tessera/comm/make_observer.h>
#include <tessera/comm/world.h>
#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/flight/recorder.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace bench {
namespace {

constexpr int kSpans = 10;
constexpr int kCalls = 64;
constexpr int kStepsPerBlock = 21;
constexpr double kComputeSeconds = 0.1;

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// A terminal in place of standard error, for the progress line, that throws away what it shows.
class HiddenTerminal {
 public:
  HiddenTerminal() : former_(dup(STDERR_FILENO)) {
    int controller = -1;
    int terminal = -1;
    const winsize size{24, 120, 0, 0};
    if (openpty(&controller, &terminal, nullptr, nullptr, &size) != 0) throw tessera::CommError("no terminal");
    controller_ = tessera::Descriptor(controller);
    fcntl(controller, F_SETFL, O_NONBLOCK);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    setenv("TERM", "xterm", 1);
  }
  ~HiddenTerminal() { dup2(former_.get(), STDERR_FILENO); }
  HiddenTerminal(const HiddenTerminal&) = delete;
  HiddenTerminal& operator=(const HiddenTerminal&) = delete;

  /// Whoever writes to a terminal that nobody reads waits in the end. Returns how much there was.
  std::size_t drain() {
    std::array<char, 4096> block{};
    std::size_t total = 0;
    for (ssize_t count = 0; (count = read(controller_.get(), block.data(), block.size())) > 0;) {
      total += static_cast<std::size_t>(count);
    }
    return total;
  }

 private:
  tessera::Descriptor former_;
  tessera::Descriptor controller_;
};

class Step {
 public:
  explicit Step(const tessera::World& world) : comm_(world.comm()) {
    const double once = time_of_product();
    at::Tensor count = at::full({1}, kComputeSeconds / (once * kSpans), at::kDouble);
    comm_.broadcast(count, 0);
    num_products_ = std::max(1, static_cast<int>(count.item<double>()));
    for (int i = 0; i < kCalls; ++i) buckets_.push_back(comm_.empty({4096}).fill_(1));
  }

  void run(tessera::observe::Observer* observer) {
    std::vector<tessera::Work> works;
    for (int span = 0; span < kSpans; ++span) {
      std::optional<tessera::observe::Span> scope;
      if (observer != nullptr) scope.emplace(observer->tracer(), "part");
      for (int i = 0; i < num_products_; ++i) at::mm_out(product_, left_, right_);
      if (span % 2 == 0) works.push_back(comm_.all_reduce_async(bucket(span)));
    }
    for (int i = 0; i < kCalls / 2 - kSpans / 2; ++i) works.push_back(comm_.all_reduce_async(bucket(i)));
    for (tessera::Work& work : works) work.wait();
    for (int i = kCalls / 2; i < kCalls; ++i) comm_.all_reduce(bucket(i));
  }

 private:
  double time_of_product() {
    constexpr int kTrials = 40;
    for (int i = 0; i < kTrials; ++i) at::mm_out(product_, left_, right_);
    const double start = seconds_of(CLOCK_MONOTONIC);
    for (int i = 0; i < kTrials; ++i) at::mm_out(product_, left_, right_);
    return (seconds_of(CLOCK_MONOTONIC) - start) / kTrials;
  }
  at::Tensor bucket(int i) const { return buckets_[static_cast<std::size_t>(i)]; }

  tessera::Communicator comm_;
  at::Tensor left_ = at::full({256, 256}, 1e-3);
  at::Tensor right_ = at::full({256, 256}, 1e-3);
  at::Tensor product_ = at::empty({256, 256});
  int num_products_ = 1;
  std::vector<at::Tensor> buckets_;
};

/// Seconds of a step: of the clock, and of the processor that the observer's thread used.
struct Cost {
  double step = 0;
  double thread = 0;
};

/// The processor's time of the threads of that name.
double seconds_of_threads(const std::string& name) {
  double seconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string own_name;
    std::ifstream(task.path() / "comm") >> own_name;
    double nanoseconds = 0;
    if (own_name == name && std::ifstream(task.path() / "schedstat") >> nanoseconds) seconds += nanoseconds * 1e-9;
  }
  return seconds;
}

Cost measure(const tessera::World& world, Step& step, tessera::observe::Observer* observer, HiddenTerminal& terminal) {
  world.comm().barrier();
  std::vector<double> times;
  const double thread_start = seconds_of_threads("tessera_observe");
  for (int i = 1; i <= kStepsPerBlock; ++i) {
    const double start = seconds_of(CLOCK_MONOTONIC);
    step.run(observer);
    if (observer != nullptr) {
      observer->record({.step = i, .loss = 1.0 / i, .tokens = 8192, .learning_rate = 1e-3, .gradient_norm = 1.0});
      if (world.rank() == 0) terminal.drain();
    }
    times.push_back(seconds_of(CLOCK_MONOTONIC) - start);
  }
  const double thread = seconds_of_threads("tessera_observe") - thread_start;
  // The median step: others who use the machine for a moment disturb it less than the mean.
  std::nth_element(times.begin(), times.begin() + kStepsPerBlock / 2, times.end());
  return {times[kStepsPerBlock / 2], thread / kStepsPerBlock};
}

Cost measure_watched(const tessera::World& world, Step& step, const std::string& folder, HiddenTerminal& terminal) {
  const auto options = tessera::ObserveOptions()
                           .json(folder + "/log.jsonl")
                           .tensorboard(folder + "/board")
                           .prometheus("0")
                           .trace(folder + "/trace");
  const auto observer = tessera::make_observer(world, options, {.total_steps = kStepsPerBlock});
  const Cost cost = measure(world, step, observer.get(), terminal);
  observer->close();
  if (world.rank() == 0) terminal.drain();
  return cost;
}

/// What the training thread pays: nanoseconds of the processor for a span, for a record, and for a call beyond what it
/// costs without a trace.
void measure_calls(const std::string& folder) {
  constexpr int kTimes = 5'000;
  const auto time_of = [](const auto& body) {
    const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kTimes; ++i) body();
    return (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start) / kTimes * 1e9;
  };
  tessera::observe::Observer observer(
      tessera::ObserveOptions().progress("off").json(folder + "/calls.jsonl").trace(folder + "/calls").trace_steps(0));
  tessera::flight::Recorder recorder;
  tessera::flight::CallStart call;
  call.group = recorder.add_group("world", {0});
  call.operation = "all_reduce";
  const auto record_call = [&] { recorder.end(recorder.begin(call), false); };
  const double plain = time_of(record_call);
  recorder.listen(observer.tracer());
  const double traced = time_of(record_call);
  const double span = time_of([&] { const auto scope = observer.span("forward"); });
  const double record = time_of([&] { observer.record({.step = 1, .loss = 1.0}); });
  std::printf("{\"call_ns\": %.0f, \"span_ns\": %.0f, \"record_ns\": %.0f}\n", traced - plain, span, record);
  std::fflush(stdout);
}

void run(int num_rounds, const std::string& folder) {
  at::set_num_threads(1);
  const tessera::World world = tessera::init();
  Step step(world);
  HiddenTerminal terminal;
  measure(world, step, nullptr, terminal);  // warms up
  for (int round = 0; round < num_rounds; ++round) {
    // Now the one first, now the other: what a machine does slowly changes both alike.
    const bool plain_first = round % 2 == 0;
    Cost plain;
    if (plain_first) plain = measure(world, step, nullptr, terminal);
    const Cost watched = measure_watched(world, step, folder, terminal);
    if (!plain_first) plain = measure(world, step, nullptr, terminal);
    if (world.rank() != 0) continue;
    std::printf("{\"plain\": %.9f, \"watched\": %.9f, \"thread\": %.9f}\n", plain.step, watched.step, watched.thread);
    std::fflush(stdout);
  }
  if (world.rank() == 0) measure_calls(folder);
  while (std::getchar() != EOF) {
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_watching ROUNDS FOLDER\n");
    return 2;
  }
  try {
    bench::run(std::stoi(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
