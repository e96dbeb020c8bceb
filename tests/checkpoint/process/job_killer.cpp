#include "checkpoint/process/job_killer.h"

#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <ctime>

namespace tessera::testing {

JobKiller::JobKiller(const std::filesystem::path& socket, const std::filesystem::path& root, const KillMoment& moment)
    : root_(root.string()), moment_(moment), listening_(listen_at(socket)) {}

KillRecord JobKiller::watch(const std::vector<int>& processes, std::chrono::seconds timeout) {
  processes_ = processes;
  const auto end = Clock::now() + timeout;
  while (!is_over_) {
    wait_for_news(std::min({end, strike_at_.value_or(end), rest_at_.value_or(end)}));
    const auto now = Clock::now();
    if (strike_at_ && now >= *strike_at_) strike();
    if ((rest_at_ && now >= *rest_at_) || now >= end || have_ended()) kill_rest();
  }
  for (Rank& rank : ranks_) take_notes(rank);
  return record_;
}

bool JobKiller::have_ended() const {
  return ranks_.size() == processes_.size() &&
         std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return static_cast<bool>(rank.socket); });
}

void JobKiller::wait_for_news(Clock::time_point until) {
  std::vector<pollfd> watched{{listening_.get(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    watched.push_back({rank.socket.get(), POLLIN, 0});
    watched.push_back({rank.calls.get(), POLLIN, 0});  // those that are gone are negative, and passed over
  }
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec wait{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
  if (ppoll(watched.data(), watched.size(), &wait, nullptr) <= 0) return;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (watched[1 + 2 * i].revents != 0) take_notes(ranks_[i]);
    if ((watched[2 + 2 * i].revents & POLLIN) != 0) {
      take_call(ranks_[i]);
    } else if (watched[2 + 2 * i].revents != 0) {
      ranks_[i].calls.reset();  // the process is gone
    }
  }
  if (watched[0].revents != 0) ranks_.emplace_back().socket = Descriptor(accept(listening_.get(), nullptr, nullptr));
}

void JobKiller::take_notes(Rank& rank) {
  if (!rank.socket) return;
  bool is_any = false;
  while (const auto note = receive_note(rank.socket.get(), rank.calls)) {
    is_any = true;
    if (note->kind == RankNote::Kind::kLoaded) record_.loaded = note->saved;
    if (note->kind == RankNote::Kind::kSaved) record_.saved = note->saved;
    if (note->kind == RankNote::Kind::kJoined) rank.number = note->rank;
  }
  if (!is_any) rank.socket.reset();  // readable without a note: its end
}

void JobKiller::take_call(Rank& rank) {
  seccomp_notif call{};
  if (ioctl(rank.calls.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return;  // it was killed meanwhile
  const auto phase = phase_of(seen_call(static_cast<int>(call.pid), call.data), root_, rank.number, rank.phase);
  const bool is_made = !phase || rest_at_ || weigh(*phase);
  if (!is_made) strike();
  if (is_over_ || (!is_made && moment_.victim == rank.number)) return;  // an answer would let it make the call
  if (phase) rank.phase = phase;
  seccomp_notif_resp answer{};
  answer.id = call.id;
  answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  ioctl(rank.calls.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

bool JobKiller::weigh(SavePhase phase) {
  // A copy makes no calls: it ends with the first bytes that are written.
  if (strike_at_ && moment_.phase == SavePhase::kCopy && phase == SavePhase::kWrite) return false;
  last_phase_ = phase;
  if (strike_at_ || phase != moment_.phase || ++num_calls_[phase] < moment_.call) return true;
  if (moment_.is_before) return false;
  strike_at_ = Clock::now() + moment_.delay;
  return true;
}

void JobKiller::strike() {
  record_.phase = last_phase_;
  strike_at_.reset();
  if (!moment_.victim) return kill_rest();
  kill(processes_.at(static_cast<std::size_t>(*moment_.victim)), SIGKILL);
  rest_at_ = Clock::now() + moment_.survival;
}

void JobKiller::kill_rest() {
  for (const int process : processes_) kill(process, SIGKILL);
  is_over_ = true;
}

}  // namespace tessera::testing
