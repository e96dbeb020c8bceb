#pragma once

#include <tessera/core/descriptor.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/process/rank_link.h"
#include "checkpoint/process/save_phase.h"

namespace tessera::testing {

/// When a job is killed, and who of it.
struct KillMoment {
  SavePhase phase = SavePhase::kDraft;
  int call = 1;            ///< which one of the phase, counted over all ranks and saves from 1
  bool is_before = false;  ///< the call is never made; else the kill comes `delay` behind its beginning
  std::chrono::microseconds delay{0};
  std::optional<int> victim = std::nullopt;  ///< this rank; the others `survival` later. None: all at once
  std::chrono::milliseconds survival{0};
};

/// What was seen of a job.
struct KillRecord {
  std::optional<SavePhase> phase;  ///< that of the last call before the first kill; none: the moment never came
  std::optional<SavedVersion> loaded;
  std::optional<SavedVersion> saved;  ///< the newest of which the job said that it is on the disk
};

/// Watches the calls of a job's ranks and kills it at a moment. Each call of a save stands still until this has seen
/// it, so the moment is hit to the call, in processes that run as they always do.
class JobKiller {
 public:
  /// Ranks connect to `socket`, and save into `root`.
  JobKiller(const std::filesystem::path& socket, const std::filesystem::path& root, const KillMoment& moment);

  /// Kills these processes, at the moment or when `timeout` has passed. Blocks: until then.
  KillRecord watch(const std::vector<int>& processes, std::chrono::seconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    Descriptor socket;
    Descriptor calls;
    int number = -1;
    std::optional<SavePhase> phase;
  };

  /// All ranks, by themselves.
  bool have_ended() const;
  void wait_for_news(Clock::time_point until);
  void take_notes(Rank& rank);
  void take_call(Rank& rank);
  /// False: the call must not be made.
  bool weigh(SavePhase phase);
  void strike();
  void kill_rest();

  std::string root_;
  KillMoment moment_;
  Descriptor listening_;
  std::vector<Rank> ranks_;  // in the order in which they came
  std::vector<int> processes_;
  bool is_over_ = false;
  std::map<SavePhase, int> num_calls_;
  std::optional<SavePhase> last_phase_;
  std::optional<Clock::time_point> strike_at_;
  std::optional<Clock::time_point> rest_at_;
  KillRecord record_;
};

}  // namespace tessera::testing
