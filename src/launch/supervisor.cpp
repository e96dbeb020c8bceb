#include "launch/supervisor.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <sys/wait.h>
#include <tuple>
#include <utility>
#include <vector>

#include "launch/failure_report.h"
#include "launch/process.h"

namespace tessera::launch {
namespace {

std::vector<int> supervised_signals() {
  std::vector<int> signals = ending_signals();
  signals.insert(signals.end(), {SIGCHLD, SIGTSTP, SIGCONT});
  return signals;
}

int milliseconds_until(std::optional<Clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

/// A job that ran this long does not fail because of how it was started, so waiting before a restart would not help.
constexpr std::chrono::minutes kGoodRun{1};
constexpr std::int64_t kGoodCalls = 16;

bool has_communicated(const Rank& rank) {
  const auto snapshot = rank.recorded();
  if (!snapshot) return false;
  const auto is_done = [](const CallRecord& call) { return call.state == CallState::kDone; };
  return std::count_if(snapshot->calls.begin(), snapshot->calls.end(), is_done) >= kGoodCalls;
}

bool failed_in_a_call(const Rank& rank) {
  const auto snapshot = rank.recorded();
  if (!snapshot) return false;
  const CallRecord* const call = flight::current_call(*snapshot);
  return call != nullptr && call->state == CallState::kFailed;
}

bool is_about_the_living(const flight::Finding& finding, const std::vector<flight::RankStatus>& statuses) {
  return std::all_of(finding.ranks.begin(), finding.ranks.end(), [&](int rank) {
    return std::any_of(statuses.begin(), statuses.end(), [&](const flight::RankStatus& status) {
      return status.rank == rank && flight::is_alive(status.condition);
    });
  });
}

bool has_communicated(const Attempt& attempt) {
  const auto& ranks = attempt.ranks();
  return std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return has_communicated(rank); });
}

/// The descriptors to wait for.
class PollSet {
 public:
  /// Returns the index to pass to is_ready().
  std::size_t add(int descriptor, short events) {
    entries_.push_back({descriptor, events, 0});
    return entries_.size() - 1;
  }
  void wait(int milliseconds) {
    if (poll(entries_.data(), entries_.size(), milliseconds) >= 0) return;
    for (pollfd& entry : entries_) entry.revents = 0;
  }
  bool is_ready(std::size_t place) const { return entries_[place].revents != 0; }

 private:
  std::vector<pollfd> entries_;
};

}  // namespace

Supervisor::Supervisor(RunPlan plan, Descriptor front)
    : plan_(std::move(plan)), front_(std::move(front)), signals_(supervised_signals()) {
  if (plan_.node_rank == 0) {
    port_.emplace(plan_.master_address, plan_.master_port);
    store_.emplace(plan_.store_address, plan_.store_port, plan_.secret.value());
    plan_.master_port = port_->port();
    plan_.store_port = store_->port();
  }
  if (plan_.num_nodes > 1) nodes_ = std::make_unique<Nodes>(plan_);
  if (plan_.rank_of(0) == 0 && plan_.shows_errors && console_.progress_width() > 0) {
    progress_.emplace();
    plan_.progress_path = progress_->path();
    plan_.progress_width = console_.progress_width();
  }
  // The reader of our output may end; ranks whose output is kept go on.
  signal(SIGPIPE, SIG_IGN);
}

int Supervisor::run() {
  const int code = run_generations();
  if (nodes_) leave_nodes();
  flush_console();
  return code;
}

int Supervisor::run_generations() {
  if (nodes_) {
    if (const Verdict verdict = gather()) return *verdict;
  }
  for (int generation = 0;; ++generation) {
    if (const Verdict verdict = run_attempt(generation)) return *verdict;
    // With several nodes, node 0 has already waited, in decide().
    if (!nodes_ && !wait_for_restart(generation + 1)) return exit_code_of_ending();
  }
}

int Supervisor::exit_code_of_ending() const { return 128 + (front_is_gone_ ? SIGKILL : ending_signal_); }

Supervisor::Verdict Supervisor::run_attempt(int generation) {
  Attempt attempt(plan_, generation, console_);
  kill_time_.reset();
  node_report_.reset();
  const auto fault = attempt.start();
  if (!fault) watch(attempt, generation);
  attempt.finish();
  console_.set_progress("");
  ran_well_ = Clock::now() - attempt.start_time() >= kGoodRun || has_communicated(attempt);
  if (!fault) return judge(attempt, generation);
  note(fault->message);
  if (!nodes_) return fault->exit_code;
  nodes_->tell(Agreement::failed(generation, {plan_.node_rank, -1, fault->exit_code, true, fault->message}));
  return settle(attempt, generation);
}

void Supervisor::watch(Attempt& attempt, int generation) {
  bool warned = false;
  while (!attempt.all_ended() && !must_stop_now()) {
    wait(kill_time_, &attempt);
    if (!warned && ending_signal_ == 0) {
      warned = true;
      if (attempt.first_failure() != nullptr) {
        end_after_failure(attempt, generation);
      } else if (others_ended(generation)) {
        end_with_others(attempt, generation);
      } else {
        warned = false;
      }
    }
    if (kill_time_ && Clock::now() >= *kill_time_) return;
  }
}

void Supervisor::end_after_failure(Attempt& attempt, int generation) {
  const Rank& first = *attempt.first_failure();
  const int status = first.death->wait_status;
  const std::string title = "rank " + std::to_string(first.number);
  const std::string verdict = verdict_of(first);
  // If there is a verdict, the ranks have already compared their records and printed a report.
  if (verdict.empty()) node_report_ = node_report(attempt, plan_, title + " died (" + end_in_short(status) + ")");
  if (nodes_) {
    const std::string meaning = exit_meaning(status) + (verdict.empty() ? "" : ", because " + verdict);
    const Failure failure{plan_.node_rank, first.number, exit_code_of(status), false, meaning};
    nodes_->tell(Agreement::failed(generation, failure));
  }
  if (attempt.all_ended()) return;
  note(title + " " + exit_meaning(status) + "; ending the others");
  begin_ending(attempt, SIGTERM);
}

/// The cause that the ranks or their records show, if it is not the rank that ended first; otherwise empty.
std::string Supervisor::cause_of_failure(const Attempt& attempt) const {
  const Rank& first = *attempt.first_failure();
  if (!node_report_ || node_report_->findings.empty()) return verdict_of(first);
  const flight::Finding& finding = node_report_->findings.front();
  const std::string own_death = "rank " + std::to_string(first.number) + " " + verb(flight::RankCondition::kDead);
  // A rank that ended in its own code is its own cause, even if others are lost too, unless the calls of the ranks
  // differ.
  const bool has_cause = failed_in_a_call(first) || is_about_the_living(finding, node_report_->ranks);
  return finding.what.starts_with(own_death) || !has_cause ? "" : finding.what;
}

void Supervisor::begin_ending(Attempt& attempt, int signal) {
  attempt.signal(signal);
  // A stopped rank handles the signal only when it is continued.
  attempt.signal(SIGCONT);
  if (!kill_time_) kill_time_ = Clock::now() + plan_.grace;
}

Supervisor::Verdict Supervisor::judge(const Attempt& attempt, int generation) {
  if (front_is_gone_) return exit_code_of_ending();
  if (ending_signal_ != 0) return end_of_signalled(attempt);
  if (nodes_) return settle(attempt, generation);
  if (attempt.first_failure() == nullptr) return 0;
  tell_failure(failure_report(attempt, plan_, generation, cause_of_failure(attempt)), generation);
  if (generation < plan_.max_restarts) return std::nullopt;
  return exit_code_of(attempt.first_failure()->death->wait_status);
}

int Supervisor::end_of_signalled(const Attempt& attempt) {
  const auto& ranks = attempt.ranks();
  const auto num_killed =
      std::count_if(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.death && rank.death->killed; });
  note("ended by " + signal_name(ending_signal_) +
       (num_killed == 0 ? "" : "; " + std::to_string(num_killed) + " ranks had to be killed"));
  return exit_code_of_ending();
}

void Supervisor::tell_failure(const std::vector<std::string>& report, int generation) {
  for (const std::string& line : report) console_.add_note(line);
  if (!node_report_) return;
  std::string text = flight::to_text(*node_report_);
  text.pop_back();  // the line end, which a note has itself
  console_.add_note(text);
  if (plan_.log_dir.empty()) return;
  const std::string path = node_report_path(plan_, generation);
  const std::string fault = write_node_report(*node_report_, path);
  note(fault.empty() ? "kept in " + path + " (tessera inspect hang)" : fault);
}

bool Supervisor::wait_for_restart(int generation) {
  store_->forget(generation - 1);
  const auto pause = backoff_.next(ran_well_);
  note("restart " + std::to_string(generation) + " of " + std::to_string(plan_.max_restarts) +
       (pause.count() == 0 ? " now" : " in " + duration_for_people(pause)));
  const auto deadline = Clock::now() + pause;
  do {
    wait(deadline, nullptr);
  } while (Clock::now() < deadline && !is_ending());
  return !is_ending();
}

/// Waits for a reader that pauses, such as a pager. After a signal to end, it waits no longer than for ranks.
void Supervisor::flush_console() {
  std::optional<Clock::time_point> deadline;
  while (console_.has_pending() && !must_stop_now()) {
    if (is_ending() && !deadline) deadline = Clock::now() + plan_.grace;
    if (deadline && Clock::now() >= *deadline) return;
    wait(deadline, nullptr);
  }
}

/// Handles deaths and signals before output: output can wait, but the order in which ranks died must be kept.
void Supervisor::wait(std::optional<Clock::time_point> deadline, Attempt* attempt) {
  PollSet set;
  const auto signals = set.add(signals_.descriptor(), POLLIN);
  const auto front = set.add(front_.get(), POLLIN);
  const auto progress = progress_ ? set.add(progress_->descriptor(), POLLIN) : front;
  const auto nodes = nodes_ ? set.add(nodes_->descriptor(), POLLIN) : front;
  if (attempt != nullptr) set.add(attempt->deaths_descriptor(), POLLIN);
  std::vector<std::pair<Stream, std::size_t>> writable;
  for (const Stream stream : kStreams) {
    if (console_.has_pending(stream)) writable.emplace_back(stream, set.add(console_.descriptor(stream), POLLOUT));
  }
  std::vector<std::tuple<RankOutput*, Stream, std::size_t>> readable;
  if (attempt != nullptr && !console_.is_full()) {
    for (Rank& rank : attempt->ranks()) {
      for (const Stream stream : kStreams) {
        const int descriptor = rank.output->descriptor(stream);
        if (descriptor >= 0) readable.emplace_back(rank.output.get(), stream, set.add(descriptor, POLLIN));
      }
    }
  }
  set.wait(milliseconds_until(deadline));
  if (attempt != nullptr) attempt->reap();
  if (set.is_ready(signals)) take_signals(attempt);
  if (set.is_ready(front)) front_is_gone_ = true;
  if (nodes_ && set.is_ready(nodes)) nodes_->take_news();
  for (const auto& [stream, place] : writable) {
    if (set.is_ready(place)) console_.write_some(stream);
  }
  for (const auto& [output, stream, place] : readable) {
    if (set.is_ready(place)) output->read_some(stream);
  }
  if (progress_ && set.is_ready(progress)) {
    if (const auto line = progress_->take()) console_.set_progress(*line);
  }
}

void Supervisor::take_signals(Attempt* attempt) {
  while (const auto signal = signals_.next()) take_signal(*signal, attempt);
}

void Supervisor::take_signal(int signal, Attempt* attempt) {
  switch (signal) {
    case SIGCHLD:
      return;  // only ends the wait: reap() runs after every wait
    case SIGTSTP:
      // Not SIGTSTP: process groups without a terminal do not react to it.
      if (attempt != nullptr) attempt->signal(SIGSTOP);
      return;
    case SIGCONT:
      if (attempt != nullptr) attempt->signal(SIGCONT);
      return;
    default:
      take_ending_signal(signal, attempt);
  }
}

void Supervisor::take_ending_signal(int signal, Attempt* attempt) {
  // timeout(1) and some batch systems signal the process and then its whole group, so one signal arrives twice.
  constexpr std::chrono::milliseconds kEcho{100};
  if (signal == ending_signal_ && Clock::now() - ending_time_ < kEcho) return;
  if (ending_signal_ != 0) {
    kill_at_once_ = true;
    return;
  }
  ending_signal_ = signal;
  ending_time_ = Clock::now();
  if (nodes_) nodes_->tell(Agreement::signalled(plan_.node_rank, signal));
  if (attempt != nullptr) begin_ending(*attempt, signal);
}

namespace {

constexpr int kRefusedExitCode = 2;  // that of a ConfigError

}  // namespace

/// Blocks: until all nodes have come, or it is certain that they will not. Returns the exit code in that case.
Supervisor::Verdict Supervisor::gather() {
  const Agreement& agreement = nodes_->agreement();
  const auto deadline = Clock::now() + plan_.meeting_timeout;
  bool gave_up = false;
  while (!agreement.all_present() && agreement.refusal().empty() && !agreement.ending() && !is_ending()) {
    // Only node 0 watches the deadline; the others wait until it gives up.
    const bool counts = plan_.node_rank == 0 && !gave_up;
    wait(counts ? std::optional(deadline) : std::nullopt, nullptr);
    if (!counts || Clock::now() < deadline) continue;
    nodes_->tell(Agreement::gave_up());
    gave_up = true;
  }
  if (is_ending()) return exit_code_of_ending();
  if (!agreement.refusal().empty()) {
    note(agreement.refusal());
    return kRefusedExitCode;
  }
  if (agreement.ending()) {
    note(agreement.ending()->text);
    return agreement.ending()->exit_code;
  }
  plan_.first_rank = agreement.first_rank(plan_.node_rank);
  plan_.world_size = agreement.world_size();
  plan_.master_port = agreement.master_port();
  return std::nullopt;
}

bool Supervisor::others_ended(int generation) const {
  return nodes_ && (nodes_->agreement().failure(generation) != nullptr || nodes_->agreement().ending());
}

void Supervisor::end_with_others(Attempt& attempt, int generation) {
  const auto& ending = nodes_->agreement().ending();
  reported_time_ = Clock::now();
  if (ending && ending->signal != 0) {
    note(ending->text + "; ending the ranks of this node");
    return begin_ending(attempt, ending->signal);
  }
  const std::string cause = "the job failed because " + nodes_->cause(generation);
  node_report_ = node_report(attempt, plan_, cause, nodes_->ranks_to_blame(generation));
  note(cause + "; ending the ranks of this node");
  begin_ending(attempt, SIGTERM);
}

/// Waits until the ranks of all nodes have ended and node 0 has decided how the job goes on.
Supervisor::Verdict Supervisor::settle(const Attempt& attempt, int generation) {
  const Agreement& agreement = nodes_->agreement();
  nodes_->tell(Agreement::done(generation, plan_.node_rank));
  bool reported = false;
  bool decided = false;
  while (true) {
    if (!reported && others_ended(generation)) {
      report_to_people(attempt, generation);
      reported = true;
    }
    if (front_is_gone_) return exit_code_of_ending();
    if (ending_signal_ != 0) return end_of_signalled(attempt);
    if (agreement.ending()) return agreement.ending()->exit_code;
    if (agreement.generation() > generation) break;
    if (plan_.node_rank == 0 && agreement.all_done() && !decided) {
      decided = true;
      if (!decide(generation)) return exit_code_of_ending();
    }
    wait(std::nullopt, nullptr);
  }
  if (plan_.node_rank != 0) note("restart " + std::to_string(generation + 1));
  return std::nullopt;
}

/// Node 0 decides for all nodes. Returns false when a signal asks this launcher to end meanwhile.
bool Supervisor::decide(int generation) {
  const Failure* failure = nodes_->agreement().failure(generation);
  if (failure == nullptr) {
    nodes_->tell(Agreement::over(0));
  } else if (failure->is_final || generation >= plan_.max_restarts) {
    nodes_->tell(Agreement::over(failure->exit_code));
  } else {
    if (!wait_for_restart(generation + 1)) return false;
    nodes_->tell(Agreement::restarted(generation + 1));
  }
  return true;
}

void Supervisor::report_to_people(const Attempt& attempt, int generation) {
  const Failure* failure = nodes_->agreement().failure(generation);
  const auto& ending = nodes_->agreement().ending();
  if (failure != nullptr && failure->node_rank == plan_.node_rank && attempt.first_failure() != nullptr) {
    return tell_failure(failure_report(attempt, plan_, generation, cause_of_failure(attempt)), generation);
  }
  // Prints nothing for success, nor for a signal, which was reported when it came.
  if (failure == nullptr && (ending->text.empty() || ending->signal != 0)) return;
  if (reported_time_ < attempt.start_time()) reported_time_ = Clock::now();
  tell_failure(failure_report(attempt, plan_, generation, nodes_->cause(generation), reported_time_), generation);
}

/// The other nodes and their ranks may still need the store: for a moment to read how the job ended, or as long as
/// ranks may take to end.
void Supervisor::leave_nodes() {
  if (front_is_gone_) return;  // without leave(), the others regard this node as lost
  const auto& ending = nodes_->agreement().ending();
  const bool is_lost = ending && ending->lost_node >= 0;
  nodes_->leave();
  nodes_.reset();
  if (!store_) return;
  constexpr std::chrono::milliseconds kMoment{1000};
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  const auto deadline = Clock::now() + kMoment + (is_lost ? std::chrono::milliseconds(0) : plan_.grace);
  while (store_->num_clients() > 0 && Clock::now() < deadline && !must_stop_now()) {
    wait(std::min(deadline, Clock::now() + kBetweenLooks), nullptr);
  }
}

}  // namespace tessera::launch
