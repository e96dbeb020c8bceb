#include <tessera/flight/clock.h>
#include <tessera/observe/tracer.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "observe/trace_file.h"

namespace tessera::observe {
namespace {

/// Some 20 MB, at ten thousand events a second enough for seconds in which nothing can be written.
constexpr std::size_t kMaxPending = std::size_t{1} << 16;

}  // namespace

struct Tracer::State {
  State(std::string path_of_file, const RunDescription& run)
      : path(std::move(path_of_file)), file(path, run, std::this_thread::get_id()) {}

  void add(TraceEvent event) {
    const std::lock_guard lock(mutex);
    if (pending.size() < kMaxPending) {
      pending.push_back(std::move(event));
    } else {
      num_dropped.fetch_add(1, std::memory_order_relaxed);
    }
  }

  std::string path;
  std::atomic<bool> on = false;
  std::atomic<std::uint64_t> num_dropped = 0;
  std::mutex mutex;
  std::vector<TraceEvent> pending;
  std::mutex writing;
  std::vector<TraceEvent> being_written;  // keeps its memory from one time to the next
  TraceFile file;
};

Tracer::Tracer(const std::string& path, const RunDescription& run) : state_(std::make_unique<State>(path, run)) {}

Tracer::~Tracer() = default;

bool Tracer::is_on() const { return state_->on.load(std::memory_order_relaxed); }
void Tracer::start() { state_->on = true; }
void Tracer::stop() { state_->on = false; }

void Tracer::add_span(std::string_view name, std::int64_t start_ns, std::int64_t end_ns) {
  if (is_on()) state_->add(SpanEvent{std::string(name), std::this_thread::get_id(), start_ns, end_ns});
}

void Tracer::add_step(const StepRecord& record, std::int64_t start_ns, std::int64_t end_ns) {
  if (is_on()) state_->add(StepEvent{record, start_ns, end_ns});
}

void Tracer::add_clock(const ClockOffset& offset) { state_->add(ClockEvent{offset, flight::now_ns()}); }

void Tracer::call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) {
  if (is_on()) state_->add(CallEvent{call, done_ns, blocked_ns});
}

void Tracer::write_pending() {
  const std::lock_guard writing(state_->writing);
  state_->being_written.clear();
  {
    const std::lock_guard lock(state_->mutex);
    state_->pending.swap(state_->being_written);
  }
  for (const TraceEvent& event : state_->being_written) state_->file.add(event);
  state_->file.flush();
}

std::uint64_t Tracer::num_dropped() const { return state_->num_dropped.load(std::memory_order_relaxed); }
const std::string& Tracer::path() const { return state_->path; }

Span::Span(std::shared_ptr<Tracer> tracer, std::string_view name) : tracer_(std::move(tracer)) {
  if (!tracer_) return;
  name_ = name;
  start_ns_ = flight::now_ns();
}

Span::~Span() { end(); }

void Span::end() {
  if (!tracer_) return;
  tracer_->add_span(name_, start_ns_, flight::now_ns());
  tracer_ = nullptr;
}

}  // namespace tessera::observe
