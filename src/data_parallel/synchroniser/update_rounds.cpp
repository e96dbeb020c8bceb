#include "data_parallel/synchroniser/update_rounds.h"

#include <tessera/core/error.h>
#include <tessera/shard/stream_order.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

namespace tessera::data_parallel {
namespace {

constexpr std::chrono::nanoseconds kLeastGrace = std::chrono::milliseconds(1);
constexpr double kGraceOfComputing = 0.015;  // small against a step, long enough for equally fast ranks to meet
constexpr double kNewestWeighs = 0.2;

// The tally is the maximum over the ranks of each of these fields.
enum TallyField : std::int64_t { kHasGradient, kUnfinished, kLeftRankPlusOne, kTallySize };

at::TensorOptions tally_options(const FlatParameters& layout) {
  return at::TensorOptions().dtype(at::kLong).device(layout.parameters().front().device());
}

std::vector<c10::Stream> streams_of(const FlatParameters& layout) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& parameter : layout.parameters()) devices.push_back(parameter.device());
  return current_streams(devices);
}

}  // namespace

UpdateRounds::UpdateRounds(Communicator comm, const FlatParameters& layout, RoundRules rules)
    : comm_(std::move(comm)),
      layout_(layout),
      rules_(rules),
      streams_(streams_of(layout)),
      tally_(comm_.empty({kTallySize}, tally_options(layout))),
      thread_([this] { run(); }) {}

UpdateRounds::~UpdateRounds() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void UpdateRounds::come_behind_rounds() const {
  for (const c10::Stream& stream : streams_) order_streams(stream, *current_stream(stream.device()));
}

void UpdateRounds::let_rounds_come_behind() const {
  for (const c10::Stream& stream : streams_) order_streams(*current_stream(stream.device()), stream);
}

FlatBuffers UpdateRounds::take_buffers() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      FlatBuffers buffers = std::move(spare_.back());
      spare_.pop_back();
      return buffers;
    }
  }
  return layout_.make_buffers(comm_);
}

void UpdateRounds::contribute(FlatBuffers gradient) {
  std::unique_lock lock(mutex_);
  note_computing_time();
  if (rules_.max_staleness) {
    // The version does not change during the wait: only this thread applies updates.
    changed_.wait(lock, [&] { return failure_ || !pending_; });
  }
  rethrow_failure();
  Contribution contribution{std::move(gradient), {}};
  if (pending_) {
    Contribution former = std::move(*pending_);
    pending_.reset();
    lock.unlock();  // a round may pass meanwhile, and the sum goes to the one after it
    for (std::size_t i = 0; i < former.sum.size(); ++i) former.sum[i].add_(contribution.sum[i]);
    lock.lock();
    spare_.push_back(std::move(contribution.sum));
    contribution = std::move(former);
  }
  let_rounds_come_behind();
  contribution.versions.push_back(version_);
  pending_ = std::move(contribution);
  changed_.notify_all();
}

std::optional<FlatBuffers> UpdateRounds::next_update() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !queue_.empty() || (finishing_ ? done_ : may_compute()); });
  rethrow_failure();
  if (queue_.empty()) {
    computing_since_ = Clock::now();
    return std::nullopt;
  }
  FlatBuffers update = std::move(queue_.front());
  queue_.pop_front();
  come_behind_rounds();
  return update;
}

void UpdateRounds::applied(FlatBuffers update) {
  let_rounds_come_behind();
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(update));
  ++version_;
  changed_.notify_all();
}

void UpdateRounds::finish() {
  const std::lock_guard lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
}

std::uint64_t UpdateRounds::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

StalenessHistogram UpdateRounds::staleness() const {
  const std::lock_guard lock(mutex_);
  return staleness_;
}

// See Note [Rounds].
bool UpdateRounds::may_pass() const {
  return !rules_.max_staleness || num_updates_ + 1 <= version_ + *rules_.max_staleness;
}

bool UpdateRounds::may_compute() const {
  const std::uint64_t earliest = num_updates_ + (in_flight_ ? 1 : 0) + (pending_ ? 1 : 0);
  return !rules_.max_staleness || earliest <= version_ + *rules_.max_staleness;
}

std::chrono::nanoseconds UpdateRounds::grace() const {
  const double share = kGraceOfComputing * static_cast<double>(computing_time_.count());
  return std::max(kLeastGrace, std::chrono::nanoseconds(static_cast<std::int64_t>(share)));
}

void UpdateRounds::note_computing_time() {
  if (!computing_since_) return;
  const std::chrono::duration<double, std::nano> taken = Clock::now() - *computing_since_;
  const auto before = static_cast<double>(computing_time_.count());
  const double weight = before > 0 ? kNewestWeighs : 1.0;
  computing_time_ = std::chrono::nanoseconds(static_cast<std::int64_t>(before + weight * (taken.count() - before)));
}

void UpdateRounds::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void UpdateRounds::run() {
  try {
    const c10::DeviceGuard device(tally_.device());
    const c10::MultiStreamGuard on_streams(streams_);
    run_rounds();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void UpdateRounds::run_rounds() {
  while (true) {
    std::optional<Contribution> mine = take_offer();
    const Tally tally = exchange_tally(mine.has_value());
    if (tally.left) {
      if (*tally.left == comm_.rank()) return;
      throw CommError("rank " + std::to_string(comm_.world_rank_of(*tally.left)) +
                      " left the training before Synchroniser::finish(), so rank " +
                      std::to_string(comm_.world_rank()) + " gets no more updates of group " + comm_.name() +
                      "; look for the error of that rank, or call finish() on every rank");
    }
    if (tally.has_gradients) {
      reduce_and_queue(std::move(mine));
    } else if (tally.all_finished) {
      return;
    } else {
      const std::lock_guard lock(mutex_);
      in_flight_ = false;
      changed_.notify_all();
    }
  }
}

std::optional<UpdateRounds::Contribution> UpdateRounds::take_offer() {
  std::unique_lock lock(mutex_);
  if (!rules_.max_staleness) {
    changed_.wait(lock, [&] { return leaving_ || queue_.size() < rules_.max_queued; });
  }
  const auto has_answer = [&] { return pending_ || finishing_ || leaving_; };
  const auto grace_ends = Clock::now() + grace();
  while (!has_answer()) {
    if (!may_pass()) {
      changed_.wait(lock, [&] { return has_answer() || may_pass(); });
    } else if (changed_.wait_until(lock, grace_ends) == std::cv_status::timeout) {
      break;
    }
  }
  in_flight_ = true;
  return std::exchange(pending_, std::nullopt);
}

UpdateRounds::Tally UpdateRounds::exchange_tally(bool has_gradient) {
  bool finished = false;
  bool left = false;
  {
    const std::lock_guard lock(mutex_);
    finished = finishing_ && !pending_;
    left = leaving_;
    changed_.notify_all();  // the slot of the next gradient is free
  }
  tally_[kHasGradient] = has_gradient ? 1 : 0;
  tally_[kUnfinished] = finished ? 0 : 1;
  tally_[kLeftRankPlusOne] = left ? comm_.rank() + 1 : 0;
  comm_.all_reduce(tally_, ReduceOp::kMax);
  const at::Tensor sums = tally_.cpu();
  const auto* field = sums.const_data_ptr<std::int64_t>();
  Tally tally{field[kHasGradient] != 0, field[kUnfinished] == 0, std::nullopt};
  if (field[kLeftRankPlusOne] > 0) tally.left = static_cast<int>(field[kLeftRankPlusOne] - 1);
  return tally;
}

void UpdateRounds::reduce_and_queue(std::optional<Contribution> mine) {
  FlatBuffers update;
  if (mine) {
    update = std::move(mine->sum);
  } else {
    update = take_buffers();
    for (auto& buffer : update) buffer.zero_();
  }
  for (auto& buffer : update) comm_.all_reduce(buffer, ReduceOp::kAvg);
  const std::lock_guard lock(mutex_);
  if (mine) {
    for (const auto version : mine->versions) staleness_.add(num_updates_ - version);
  }
  queue_.push_back(std::move(update));
  ++num_updates_;
  in_flight_ = false;
  changed_.notify_all();
}

}  // namespace tessera::data_parallel
