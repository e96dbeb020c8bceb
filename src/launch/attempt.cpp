#include "launch/attempt.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "launch/process.h"

namespace tessera::launch {

std::chrono::milliseconds Backoff::next(bool ran_well) {
  if (ran_well) next_ = std::chrono::milliseconds(0);
  const auto wait = next_;
  next_ = std::clamp(2 * wait, kShortest, kLongest);
  return wait;
}

namespace {

/// glibc 2.36 has pidfd_open, but declares it without extern "C".
Descriptor open_process(pid_t process) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0))); }

}  // namespace

/// Note [Who failed first]
/// When one rank dies, others often die because of it a moment later, and the launcher may be busy while both happen.
/// waitpid() reaps children in the order of their ids, which does not show who died first. But a pidfd becomes readable
/// when its process ends, and epoll returns descriptors in the order in which they became readable.
Attempt::Attempt(const RunPlan& plan, int generation, Console& console)
    : plan_(plan),
      generation_(generation),
      console_(console),
      start_time_(Clock::now()),
      deaths_(epoll_create1(EPOLL_CLOEXEC)),
      ranks_(static_cast<std::size_t>(plan.num_ranks)) {
  if (!deaths_) throw CommError(std::string("ranks cannot be watched: ") + std::strerror(errno));
  for (int local_rank = 0; local_rank < plan.num_ranks; ++local_rank) {
    Rank& rank = ranks_[static_cast<std::size_t>(local_rank)];
    rank.number = plan.rank_of(local_rank);
    rank.output = std::make_unique<RankOutput>(rank.number, output_plan(rank.number), console);
  }
}

OutputPlan Attempt::output_plan(int rank) const {
  OutputPlan output;
  output.shows_output = plan_.shows_output;
  output.shows_errors = plan_.shows_errors;
  if (!plan_.log_dir.empty()) {
    output.log_folder = plan_.attempt_folder(generation_) + "/rank_" + std::to_string(rank);
  }
  return output;
}

std::optional<StartFault> Attempt::start() {
  for (int local_rank = 0; local_rank < plan_.num_ranks; ++local_rank) {
    if (auto fault = start(local_rank)) return fault;
  }
  return std::nullopt;
}

std::optional<StartFault> Attempt::start(int local_rank) {
  Rank& rank = ranks_[static_cast<std::size_t>(local_rank)];
  // No standard input: all ranks would read the same terminal, or each a part of the same pipe.
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessSpec spec;
  spec.program = plan_.program;
  spec.arguments = plan_.arguments;
  rank.box.emplace();
  spec.environment = entries_of(environment_of(plan_, local_rank, generation_, rank.box->path()));
  spec.input = nothing.get();
  spec.output = rank.output->write_end(Stream::kOutput);
  spec.error = rank.output->write_end(Stream::kError);
  if (!plan_.cpus.empty()) spec.cpus = plan_.cpus[static_cast<std::size_t>(local_rank)];
  spec.own_group = true;
  spec.dies_with_caller = true;
  const Started started = start_process(spec);
  rank.output->close_write_ends();
  if (started.fault != 0) {
    std::string why = std::strerror(started.fault);
    if (started.fault == ENOEXEC) why += " (a script begins with #! and the path of its interpreter)";
    if (started.fault == ENOENT) why += " (the interpreter that the program names)";
    return StartFault{plan_.program + " cannot be started: " + why,
                      started.fault == ENOENT ? kNotFoundExitCode : kNotExecutableExitCode};
  }
  rank.process = started.process;
  rank.watch = open_process(started.process);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(local_rank);
  if (!rank.watch || epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, rank.watch.get(), &event) != 0) {
    throw CommError("rank " + std::to_string(rank.number) + " cannot be watched: " + std::strerror(errno));
  }
  return std::nullopt;
}

void Attempt::reap() {
  std::vector<epoll_event> events(ranks_.size());
  const int count = epoll_wait(deaths_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    Rank& rank = ranks_[events[static_cast<std::size_t>(i)].data.u64];
    int status = 0;
    if (waitpid(rank.process, &status, WNOHANG) == rank.process) record(rank, status);
  }
  int status = 0;
  for (pid_t process = 0; (process = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [&](const Rank& one) { return one.process == process && !one.death; });
    if (rank != ranks_.end()) record(*rank, status);
  }
}

void Attempt::record(Rank& rank, int wait_status, bool killed) {
  rank.death = Death{wait_status, Clock::now(), killed};
  rank.watch.reset();  // which also takes it out of the epoll set
  if (wait_status != 0 && !killed && first_failure_ == nullptr) first_failure_ = &rank;
}

bool Attempt::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.death.has_value(); });
}

void Attempt::signal(int number) const {
  for (const Rank& rank : ranks_) {
    // The leader is not reaped yet, so no other process group can have its number.
    if (rank.process > 0 && !rank.death) kill(-rank.process, number);
  }
}

void Attempt::finish() {
  reap();
  const auto stubborn = kill_descendants();
  for (Rank& rank : ranks_) {
    if (rank.process > 0 && !rank.death) record(rank, SIGKILL, true);
    rank.output->finish();
  }
  for (const pid_t process : stubborn) {
    console_.add_note("tessera run: process " + std::to_string(process) + " cannot be killed and is left behind");
  }
}

}  // namespace tessera::launch
