#include "comm/watch/watch.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <utility>

#include "comm/watch/alarm.h"
#include "comm/watch/thread_stack.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookEvery{100};
/// A rank that lost its neighbour raises the alarm when a call has waited this long: its backend usually notices, too.
constexpr std::chrono::milliseconds kWaitsForTheLost{300};
constexpr std::chrono::milliseconds kAnswerTimeout{1500};
constexpr std::chrono::milliseconds kReportTakes{3000};
constexpr int kCommErrorExitCode = 3;
/// Published instead of a cause when the job goes on.
constexpr const char* kWithdrawn = "withdrawn";

std::chrono::nanoseconds age_of(const CallRecord& call) {
  return std::chrono::nanoseconds(flight::now_ns() - flight::waits_since(call));
}

/// A stopped rank is not slow: the rank that watches it is about to report it.
bool somebody_is_stopped(const flight::HangReport& report) {
  return std::any_of(report.ranks.begin(), report.ranks.end(), [](const flight::RankStatus& status) {
    return status.condition == flight::RankCondition::kStopped;
  });
}

/// Whether the rank that seemed to be lost has answered: it is merely slow.
bool is_false_alarm(const Alarm& alarm, const flight::HangReport& report) {
  if (alarm.kind != AlarmKind::kLost) return false;
  return std::any_of(report.ranks.begin(), report.ranks.end(), [&](const flight::RankStatus& status) {
    return status.rank == alarm.about && flight::is_alive(status.condition);
  });
}

/// For a text that goes on with a call.
std::string in_task(const flight::Recorder& recorder) {
  const auto task = recorder.task();
  return task ? task->what + ": " : "";
}

std::string seconds_text(std::chrono::nanoseconds time) { return flight::seconds_text(time.count()); }

}  // namespace

Watch::Watch(WatchSettings settings, JobKeys keys, const store::Secret& secret, flight::Recorder& recorder,
             pthread_t caller)
    : settings_(std::move(settings)), keys_(std::move(keys)), recorder_(recorder), caller_(caller) {
  prepare_stacks();
  Neighbour::Settings ring;
  ring.rank = settings_.rank;
  ring.size = settings_.size;
  ring.address = settings_.address;
  ring.silence = settings_.silence;
  ring.black_box = recorder_.path();
  neighbour_ = std::make_unique<Neighbour>(ring, keys_, secret, [this](const Neighbour::Loss& loss) { lost(loss); });
  listener_ = std::thread([this] { listen(); });
  looker_ = std::thread([this] { look(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  try {
    keys_.store().set(keys_.left(settings_.rank), "in order");
    if (settings_.store_host == settings_.rank) close_store();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): without the store, no rank can be notified
  }
  keys_.store().close();
  neighbour_.reset();
  listener_.join();
  looker_.join();
}

/// Notifies all ranks that the store is about to close. Blocks: until all ranks have begun to watch, which needs the
/// store; at most two seconds, in case one of them never does.
void Watch::close_store() {
  constexpr std::chrono::milliseconds kLingers{2000};
  try {
    keys_.store().wait({keys_.all_watch()}, kLingers);
  } catch (const store::StoreTimeout&) {  // NOLINT(bugprone-empty-catch): those ranks will report a lost store
  }
  raise({AlarmKind::kClosing, settings_.rank, -1, "the store's host leaves"});
}

bool Watch::is_stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_ || closed_;
}

std::optional<std::string> Watch::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

void Watch::set_verdict(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
    verdict_ = text;
    verdict_time_ = Clock::now();
  }
  changed_.notify_all();
}

void Watch::listen() {
  try {
    for (int number = 1;; ++number) {
      const Alarm alarm = alarm_from_json(keys_.store().get(keys_.alarm(number), store::kForever));
      {
        const std::lock_guard lock(mutex_);
        next_alarm_ = number + 1;
        fatal_raised_ = fatal_raised_ || alarm.fatal();
        closed_ = closed_ || alarm.kind == AlarmKind::kClosing;
        if (closed_ || stopping_) return;
      }
      answer(number);
      if (alarm.kind == AlarmKind::kSlow) note_reported();
      conclude(number, alarm);
    }
  } catch (const std::exception& error) {
    if (!is_stopping()) store_is_lost(error.what());
  }
}

void Watch::answer(int number) {
  Answer answer;
  answer.snapshot = flight::to_json(recorder_.snapshot());
  if (!recorder_.oldest_under_way()) answer.stack = stack_of(caller_, std::chrono::milliseconds(200));
  {
    const std::lock_guard lock(mutex_);
    answer.lost.assign(lost_.begin(), lost_.end());
  }
  keys_.store().set(keys_.answer(number, settings_.rank), to_json(answer));
}

/// The ranks of a pipeline come to wait one after the other, for the same reason: one report is enough.
void Watch::note_reported() {
  const auto call = recorder_.oldest_under_way();
  if (!call || age_of(*call) < settings_.slow_after / 2) return;
  const std::lock_guard lock(mutex_);
  last_slow_ = {call->group, call->sequence};
}

void Watch::conclude(int number, const Alarm& alarm) {
  std::string cause = alarm.trigger;
  if (alarm.by == settings_.rank) {
    const auto report = collect_report(keys_, number, alarm, settings_.size, kAnswerTimeout);
    if (is_stopping()) return;
    if (!alarm.fatal() && settings_.silence <= settings_.slow_after && somebody_is_stopped(report)) return;
    if (is_false_alarm(alarm, report)) {
      cause = kWithdrawn;
      std::fprintf(stderr, "tessera: rank %d: %s, but answers now; is its host overloaded? The job goes on\n",
                   settings_.rank, alarm.trigger.c_str());
    } else {
      publish(report, number, settings_.log_folder);
      if (!report.findings.empty()) cause = report.findings.front().what;
    }
    keys_.store().set(keys_.cause(number), cause);
  } else if (alarm.fatal()) {
    try {
      cause = keys_.store().get(keys_.cause(number), kReportTakes);
    } catch (const store::StoreTimeout&) {  // NOLINT(bugprone-empty-catch): the rank that had to report is gone, too
    }
  }
  if (cause == kWithdrawn) {
    const std::lock_guard lock(mutex_);
    fatal_raised_ = false;
    lost_.erase(alarm.about);
    return;
  }
  if (alarm.fatal()) recorder_.conclude(cause);
  // A call that only failed gives no verdict: the ranks that wait in it fail too, each at its own deadline, and others
  // may be busy elsewhere.
  if (alarm.kind == AlarmKind::kLost) set_verdict(cause);
  if (!alarm.fatal()) return;
  {
    const std::lock_guard lock(mutex_);
    explained_ = true;
  }
  changed_.notify_all();
}

bool Watch::raise(const Alarm& alarm) {
  const std::string text = to_json(alarm);
  for (;;) {
    int number = 0;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || (alarm.fatal() && fatal_raised_)) return false;
      number = next_alarm_;
    }
    const std::string found = keys_.store().compare_set(keys_.alarm(number), "", text);
    if (found == text) return true;
    if (!alarm.fatal() && alarm.kind != AlarmKind::kClosing) return false;
    // Another rank was first; listen() will count its alarm.
    const Alarm other = alarm_from_json(found);
    if (other.fatal() || other.kind == AlarmKind::kClosing) return false;
    std::unique_lock lock(mutex_);
    if (next_alarm_ <= number) next_alarm_ = number + 1;
  }
}

void Watch::lost(const Neighbour::Loss& loss) {
  if (is_stopping()) return;
  if (!loss.silent) {
    const std::lock_guard lock(mutex_);
    lost_.insert(loss.rank);
    return;  // a rank that ended matters only to ranks that wait for it: see look()
  }
  const bool visible = loss.address.process_space == flight::process_space();
  flight::ProcessState state{flight::RankCondition::kSilent, "at " + loss.address.address};
  if (visible) state = flight::state_of_process(loss.address.process);
  // Its process is alive but gets no time on its cores. It is only slow, which is reported when a rank waits for it.
  if (visible && state.condition == flight::RankCondition::kSilent) return;
  const std::string who = "rank " + std::to_string(loss.rank);
  if (loss.rank == settings_.store_host) {
    return store_is_lost(who + " " + flight::verb(state.condition) + ": " + state.detail);
  }
  try {
    raise({AlarmKind::kLost, settings_.rank, loss.rank,
           who + " has given no sign of life for " + seconds_text(settings_.silence)});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): listen() reports a lost store
  }
}

void Watch::look() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !closed_) {
    changed_.wait_for(lock, kLookEvery);
    if (stopping_ || closed_) return;
    const bool over = verdict_.has_value() && Clock::now() - verdict_time_ > settings_.grace;
    lock.unlock();
    if (over) end_stuck_call();
    try {
      look_at_oldest_call();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): listen() reports a lost store
    }
    lock.lock();
  }
}

void Watch::look_at_oldest_call() {
  const auto call = recorder_.oldest_under_way();
  if (!call) return;
  const auto age = age_of(*call);
  int neighbour = -1;
  {
    const std::lock_guard lock(mutex_);
    if (fatal_raised_ || verdict_) return;
    if (!lost_.empty()) neighbour = *lost_.begin();
    if (neighbour < 0 && last_slow_ == std::pair(call->group, call->sequence)) return;
  }
  if (neighbour >= 0 && age > kWaitsForTheLost) {
    raise({AlarmKind::kLost, settings_.rank, neighbour,
           "rank " + std::to_string(neighbour) + " has ended without closing its world, and others wait"});
  } else if (age > settings_.slow_after) {
    {
      const std::lock_guard lock(mutex_);
      last_slow_ = {call->group, call->sequence};
    }
    raise({AlarmKind::kSlow, settings_.rank, -1,
           in_task(recorder_) + call->operation + " #" + std::to_string(call->sequence) + " of group " + call->group +
               " has waited for " + seconds_text(age) + " at " + call->file + ":" + std::to_string(call->line)});
  }
}

void Watch::explain(const std::string& failure) {
  if (is_stopping()) return;
  try {
    raise({AlarmKind::kFailed, settings_.rank, -1, failure});
  } catch (const std::exception&) {
    return;  // without a store, no rank can be notified
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kAnswerTimeout + kReportTakes,
                    [this] { return explained_ || verdict_ || stopping_ || closed_; });
}

void Watch::store_is_lost(const std::string& reason) {
  const auto call = recorder_.oldest_under_way();
  const int host = settings_.store_host;
  const std::string text = "the job's store" + (host < 0 ? "" : ", which rank " + std::to_string(host) + " hosts,") +
                           " is lost, so the ranks cannot say why: " + reason;
  std::fprintf(stderr, "tessera: rank %d: %s; this rank %s\n", settings_.rank, text.c_str(),
               call ? ("is in " + in_task(recorder_) + to_string(*call)).c_str() : "is in no call");
  set_verdict(text);
}

void Watch::end_stuck_call() {
  const auto call = recorder_.oldest_under_way();
  if (!call || age_of(*call) < settings_.grace) return;
  std::fprintf(stderr, "tessera: rank %d ends, because %s; it was in %s\n", settings_.rank, verdict()->c_str(),
               (in_task(recorder_) + to_string(*call)).c_str());
  std::fflush(nullptr);
  _exit(kCommErrorExitCode);
}

namespace {

/// The job's own secret may be known to the host of its store alone. So rank 0 makes another one and publishes it in
/// the store, which only ranks can read.
store::Secret ring_secret(const Rendezvous& rendezvous, int rank, std::chrono::milliseconds timeout) {
  const std::string key = rendezvous.prefix + "watch/secret";
  if (rank == 0) rendezvous.client->set(key, store::Secret::mint().hex());
  return store::Secret::from_hex(rendezvous.client->get(key, timeout));
}

/// Counts this rank as watching. Rank 0 may leave right after init(), and the store with it, so its watch waits at its
/// end until all ranks are counted.
void tell_that_it_watches(const JobKeys& keys, int size) {
  if (keys.store().add(keys.watching(), 1) < size) return;
  try {
    keys.store().set(keys.all_watch(), "yes");
  } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): rank 0 got it, and ended before it answered
  }
}

}  // namespace

std::unique_ptr<Watch> start_watch(const WorldOptions& options, const LaunchEnvironment& launch,
                                   const Rendezvous& rendezvous, flight::Recorder& recorder) {
  if (launch.size == 1 || options.lost_after().count() == 0) return nullptr;
  WatchSettings settings;
  settings.rank = launch.rank;
  settings.size = launch.size;
  settings.store_host = rendezvous.rank_zero_hosts ? 0 : -1;
  settings.address = rendezvous.local_address;
  settings.silence = options.lost_after();
  settings.slow_after = options.slow_after();
  if (const char* folder = std::getenv("TESSERA_LOG_DIR")) settings.log_folder = folder;
  JobKeys keys(rendezvous.client, rendezvous.prefix + "watch/");
  const store::Secret secret = ring_secret(rendezvous, launch.rank, options.init_timeout());
  auto watch = std::make_unique<Watch>(std::move(settings), keys, secret, recorder, pthread_self());
  tell_that_it_watches(keys, launch.size);
  return watch;
}

}  // namespace tessera::comm
