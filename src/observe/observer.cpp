#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/observe/observe_options.h>
#include <tessera/observe/observer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <iterator>
#include <mutex>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "observe/output_file.h"
#include "observe/sinks.h"
#include "observe/steps_under_way.h"
#include "observe/summariser.h"
#include "observe/terminal.h"

namespace tessera::observe {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::array<char, 128> text{};  // "size resident shared ...", in pages
  const Descriptor file(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  if (file && read(file.get(), text.data(), text.size() - 1) > 0) {
    const char* resident = std::strchr(text.data(), ' ');
    std::int64_t num_pages = 0;
    if (resident != nullptr) std::from_chars(resident + 1, text.data() + text.size(), num_pages);
    memory.resident_bytes = num_pages * sysconf(_SC_PAGESIZE);
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) memory.peak_bytes = usage.ru_maxrss * std::int64_t{1024};
  // The kernel counts the two separately, and the peak lags behind.
  memory.peak_bytes = std::max(memory.peak_bytes, memory.resident_bytes);
  return memory;
}

std::optional<StepSummary> Summariser::add(const TimedRecord& timed) {
  const bool is_first = !open_;
  if (is_first) open_.emplace();
  open_->num_steps = is_first ? 1 : open_->num_steps + 1;
  open_->last = timed.record;
  open_->last.seconds = timed.seconds;
  open_->tokens += timed.record.tokens;
  open_->seconds += timed.seconds;
  if (timed.host_seconds) open_->host_seconds = open_->host_seconds.value_or(0) + *timed.host_seconds;
  open_->time_ns = timed.time_ns;
  return open_->num_steps >= every_ ? take_rest() : std::nullopt;
}

std::optional<StepSummary> Summariser::take_rest() { return std::exchange(open_, std::nullopt); }

}  // namespace tessera::observe

namespace tessera {

const FieldList<ObserveOptions>& ObserveOptions::fields() {
  static const FieldList<ObserveOptions> list =
      FieldList<ObserveOptions>("observe")
          .add_choice("progress", &ObserveOptions::progress_, {"auto", "plain", "off"},
                      "auto: one line rewritten in place on a terminal, nothing elsewhere; plain: a line now and then.")
          .add("plain_every", &ObserveOptions::plain_every_, "How often a plain line appears.")
          .add("json", &ObserveOptions::json_, "A file that gets one JSON object a step; empty: none.")
          .add("tensorboard", &ObserveOptions::tensorboard_, "A folder for TensorBoard's event files; empty: none.")
          .add("prometheus", &ObserveOptions::prometheus_,
               "Where Prometheus finds the figures: a port of the loopback address, or address:port; empty: nowhere.")
          .add("trace", &ObserveOptions::trace_,
               "The Perfetto trace of rank R goes to the file `trace`.rankR.pftrace; empty: none.")
          .add("trace_skip", &ObserveOptions::trace_skip_, "How many steps before the trace begins.")
          .add("trace_steps", &ObserveOptions::trace_steps_, "How many steps the trace holds; 0: all of them.")
          .add("every", &ObserveOptions::every_, "Steps that one line of JSON and one point of TensorBoard stand for.");
  return list;
}

}  // namespace tessera

namespace tessera::observe {
namespace {

/// How often the sinks get records: often enough for a terminal to look alive, and a wake-up costs only microseconds.
constexpr auto kSummariseEvery = std::chrono::milliseconds(100);
/// At one step a millisecond, enough for seconds in which nothing can be written.
constexpr std::size_t kMaxQueued = 8192;
/// How long the last steps may take on the device: a step of a large model, or a moment when an exception ends the run.
constexpr auto kLongestWait = std::chrono::seconds(60);
constexpr auto kShortWait = std::chrono::seconds(1);

/// A sink in use.
struct Feed {
  explicit Feed(SinkPlan plan) : name(std::move(plan.name)), sink(std::move(plan.sink)), summariser(plan.every) {}

  std::string name;
  std::unique_ptr<Sink> sink;  // null once it failed
  Summariser summariser;
};

/// What is occupied now.
struct Memory {
  ProcessMemory process;
  std::optional<DeviceMemory> device;
};

}  // namespace

struct Observer::State {
  State(const ObserveOptions& options, RunDescription description, std::shared_ptr<ObservedDevice> its_device);
  ~State() { stop(kShortWait); }

  void take(StepRecord record);
  void add_feed(SinkPlan plan);
  void ensure_thread();
  std::shared_ptr<DeviceMark> mark_if_used() const;
  void work();
  void wait_for_device(std::vector<TimedRecord>& done);
  void feed_all(const std::vector<TimedRecord>& records, bool is_last);
  void feed_one(Feed& feed, const std::vector<TimedRecord>& records, const Memory& memory, bool is_last);
  static void give(Feed& feed, std::optional<StepSummary> summary, const Memory& memory);
  void write_trace();
  void fail(const std::string& text);
  void stop(std::chrono::milliseconds wait_for_device_at_most);

  const std::int64_t every;
  const std::int64_t trace_skip;
  const std::int64_t trace_steps;
  RunDescription run;
  const std::shared_ptr<ObservedDevice> device;  // null: there is none
  std::shared_ptr<Terminal> terminal;
  Logger logger;
  std::unique_ptr<MetricsServer> server;
  std::shared_ptr<Tracer> tracer;

  std::mutex mutex;  // guards what follows, up to the feeds
  std::condition_variable stopping_changed;
  std::vector<RecordedStep> queue;
  std::int64_t last_ns = 0;               // when the step under way began
  std::shared_ptr<DeviceMark> last_mark;  // the same on the device; null when nobody asks
  std::int64_t num_records = 0;
  bool has_feeds = false;
  bool stopping = false;
  std::chrono::milliseconds longest_wait{0};  // from then on
  std::thread thread;
  std::atomic<std::uint64_t> num_dropped = 0;

  std::atomic<std::size_t> num_under_way = 0;
  StepsUnderWay under_way;   // the thread's alone
  std::size_t num_late = 0;  // likewise

  std::mutex feeding;  // guards what follows
  std::vector<Feed> feeds;
  std::string failures;
  bool trace_failed = false;
  bool closed = false;
};

Observer::State::State(const ObserveOptions& options, RunDescription description,
                       std::shared_ptr<ObservedDevice> its_device)
    : every(options.every()),
      trace_skip(options.trace_skip()),
      trace_steps(options.trace_steps()),
      run(std::move(description)),
      device(std::move(its_device)),
      terminal(Terminal::of_process(options.progress() == "auto" && run.rank == 0)),
      logger("observe", run.rank, LogLevel::kInfo, log_sink_above(terminal)) {
  SinkSet set = make_sinks(options, run, terminal);
  for (SinkPlan& plan : set.sinks) add_feed(std::move(plan));
  server = std::move(set.server);
  if (server && !is_loopback(server->address())) {
    logger.warning("whoever reaches " + to_string(server->address()) + " may read the figures of this run");
  }
  if (!options.trace().empty()) {
    tracer = std::make_shared<Tracer>(options.trace() + ".rank" + std::to_string(run.rank) + ".pftrace", run);
    if (trace_skip == 0) tracer->start();
  }
  last_ns = flight::now_ns();
  last_mark = mark_if_used();
  if (has_feeds || tracer) ensure_thread();
}

void Observer::State::add_feed(SinkPlan plan) {
  {
    const std::lock_guard lock(feeding);
    feeds.emplace_back(std::move(plan));
  }
  const std::lock_guard lock(mutex);
  has_feeds = true;
}

void Observer::State::ensure_thread() {
  const std::lock_guard lock(mutex);
  if (!thread.joinable() && !stopping) {
    thread = start_quiet_thread("tessera_observe", [this] { work(); });
  }
}

/// Null when nobody would read its time.
std::shared_ptr<DeviceMark> Observer::State::mark_if_used() const {
  return device && (has_feeds || (tracer && tracer->is_on())) ? device->mark() : nullptr;
}

void Observer::State::take(StepRecord record) {
  const std::int64_t now = flight::now_ns();
  const std::lock_guard lock(mutex);
  const std::int64_t start = std::exchange(last_ns, now);
  std::shared_ptr<DeviceMark> ended = mark_if_used();
  std::shared_ptr<DeviceMark> began = std::exchange(last_mark, ended);
  ++num_records;
  if (tracer) {
    tracer->add_step(record, start, now);
    tracer->add_device_step(record, began, ended);
    if (num_records == trace_skip) tracer->start();
    if (trace_steps > 0 && num_records == trace_skip + trace_steps) tracer->stop();
  }
  if (!last_mark) last_mark = mark_if_used();  // the trace begins
  if (!has_feeds || stopping) return;
  if (queue.size() + num_under_way.load(std::memory_order_relaxed) >= kMaxQueued) {
    num_dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const double seconds = record.seconds.value_or(static_cast<double>(now - start) * 1e-9);
  queue.push_back({{std::move(record), seconds, now, std::nullopt}, std::move(began), std::move(ended)});
}

void Observer::State::work() {
  for (bool is_last = false; !is_last;) {
    std::vector<RecordedStep> records;
    {
      std::unique_lock lock(mutex);
      stopping_changed.wait_for(lock, kSummariseEvery, [this] { return stopping; });
      is_last = stopping;
      records.swap(queue);
      num_under_way = under_way.size() + records.size();
    }
    for (RecordedStep& record : records) under_way.add(std::move(record));
    std::vector<TimedRecord> done = under_way.take_done();
    if (is_last) wait_for_device(done);
    num_under_way = under_way.size();
    feed_all(done, is_last);
    write_trace();
  }
}

/// At the end: until the device has done what the host has recorded. What takes too long has the host's times.
void Observer::State::wait_for_device(std::vector<TimedRecord>& done) {
  constexpr auto kPause = std::chrono::milliseconds(1);
  const auto append = [&](std::vector<TimedRecord> records) {
    std::move(records.begin(), records.end(), std::back_inserter(done));
  };
  const auto is_behind = [this] {
    return under_way.size() > 0 || (tracer && !trace_failed && tracer->num_under_way() > 0);
  };
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  while (is_behind() && std::chrono::steady_clock::now() < deadline) {
    write_trace();
    append(under_way.take_done());
    if (is_behind()) std::this_thread::sleep_for(kPause);
  }
  num_late = under_way.size();
  append(under_way.take_all());
}

void Observer::State::feed_all(const std::vector<TimedRecord>& records, bool is_last) {
  if (records.empty() && !is_last) return;
  const std::lock_guard lock(feeding);
  const Memory memory{process_memory(), device ? device->memory() : std::nullopt};
  for (Feed& feed : feeds) {
    if (!feed.sink) continue;
    try {
      feed_one(feed, records, memory, is_last);
    } catch (const std::exception& error) {
      feed.sink = nullptr;
      fail(feed.name + " end here: " + error.what());
    }
  }
}

void Observer::State::feed_one(Feed& feed, const std::vector<TimedRecord>& records, const Memory& memory,
                               bool is_last) {
  for (const TimedRecord& record : records) give(feed, feed.summariser.add(record), memory);
  if (is_last) give(feed, feed.summariser.take_rest(), memory);
  feed.sink->flush();
  if (is_last) feed.sink->close();
}

void Observer::State::give(Feed& feed, std::optional<StepSummary> summary, const Memory& memory) {
  if (!summary) return;
  summary->memory = memory.process;
  summary->device_memory = memory.device;
  feed.sink->take(*summary);
}

void Observer::State::write_trace() {
  if (!tracer || trace_failed) return;
  try {
    tracer->write_pending();
  } catch (const std::exception& error) {
    tracer->stop();
    trace_failed = true;
    const std::lock_guard lock(feeding);
    fail(std::string("the trace ends here: ") + error.what());
  }
}

void Observer::State::fail(const std::string& text) {
  failures += (failures.empty() ? "" : "\n") + text;
  logger.warning(text);
}

void Observer::State::stop(std::chrono::milliseconds wait_for_device_at_most) {
  if (std::exchange(closed, true)) return;
  {
    const std::lock_guard lock(mutex);
    longest_wait = wait_for_device_at_most;
    stopping = true;
  }
  stopping_changed.notify_all();
  if (tracer) tracer->stop();
  if (thread.joinable()) thread.join();
  server = nullptr;
  const std::lock_guard lock(feeding);
  if (num_dropped > 0) {
    fail(std::to_string(num_dropped) + " records of steps were left out: files could not be written fast enough");
  }
  if (num_late > 0) {
    fail(std::to_string(num_late) + " steps have the host's times: the device had not done them " +
         std::to_string(longest_wait.count()) + " ms after the last one was recorded");
  }
  if (tracer && tracer->num_dropped() > 0) {
    fail(std::to_string(tracer->num_dropped()) + " events are missing in " + tracer->path() +
         ": they could not be written fast enough");
  }
}

Observer::Observer(const ObserveOptions& options, RunDescription run, std::shared_ptr<ObservedDevice> device) {
  check_options(options);
  state_ = std::make_unique<State>(options, std::move(run), std::move(device));
}

Observer::~Observer() = default;

void Observer::record(StepRecord record) { state_->take(std::move(record)); }

void Observer::restart_clock() {
  const std::lock_guard lock(state_->mutex);
  state_->last_ns = flight::now_ns();
  state_->last_mark = state_->mark_if_used();
}

Span Observer::span(std::string_view name) {
  const auto& tracer = state_->tracer;
  return Span(tracer && tracer->is_on() ? tracer : nullptr, name, state_->device);
}

void Observer::print(std::string_view line) {
  std::fflush(stdout);  // so that earlier output of the program comes first
  state_->terminal->print(STDOUT_FILENO, line);
}

LogSink Observer::log_sink() { return log_sink_above(state_->terminal); }

std::shared_ptr<Terminal> Observer::terminal() const { return state_->terminal; }

void Observer::add_sink(std::unique_ptr<Sink> sink) {
  state_->add_feed({"a sink of the program's own", std::move(sink), state_->every});
  state_->ensure_thread();
}

const std::shared_ptr<Tracer>& Observer::tracer() const { return state_->tracer; }

const std::shared_ptr<ObservedDevice>& Observer::device() const { return state_->device; }

std::string Observer::prometheus_address() const { return state_->server ? to_string(state_->server->address()) : ""; }

std::uint64_t Observer::num_dropped() const { return state_->num_dropped.load(std::memory_order_relaxed); }

void Observer::close() {
  state_->stop(kLongestWait);
  const std::lock_guard lock(state_->feeding);
  if (!state_->failures.empty()) throw StorageError(std::exchange(state_->failures, ""));
}

}  // namespace tessera::observe
