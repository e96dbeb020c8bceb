// Jobs that save, killed at seeded moments of every phase of a save: what was saved is there, nothing else passes for a
// step, and the next job goes on in the same folder.
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/process/job_killer.h"
#include "checkpoint/process/numbered_state.h"
#include "checkpoint/process/roles.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)

constexpr int kNumRanks = 2;
constexpr int kJobsOfAFolder = 25;
constexpr int kKilled = 137;

/// A job's moment, and how it saves.
struct Plan {
  KillMoment moment;
  bool asynchronous = false;
  std::string refused = {};  // a call that the kernel does not let it make
};

/// About as many calls as a phase has in the first few saves.
int num_calls_of(SavePhase phase) {
  static const std::map<SavePhase, int> numbers{
      {SavePhase::kDraft, 30},   {SavePhase::kCopy, 5},      {SavePhase::kWrite, 60}, {SavePhase::kSync, 24},
      {SavePhase::kTelling, 40}, {SavePhase::kManifest, 40}, {SavePhase::kRename, 9}, {SavePhase::kCleanUp, 24}};
  return numbers.at(phase);
}

Plan plan_of(int job, std::mt19937& random) {
  Plan plan;
  KillMoment& moment = plan.moment;
  moment.phase = kSavePhases.at(static_cast<std::size_t>(job) % kSavePhases.size());
  moment.call = 1 + static_cast<int>(random() % static_cast<unsigned>(num_calls_of(moment.phase)));
  const bool is_copy = moment.phase == SavePhase::kCopy;
  moment.is_before = !is_copy && random() % 2 == 0;
  // Within a call, or within the next few.
  moment.delay = std::chrono::microseconds(random() % (random() % 3 == 0 ? 3000 : 100));
  if (random() % 3 == 0) moment.victim = static_cast<int>(random() % kNumRanks);
  moment.survival = std::chrono::milliseconds(random() % 40);
  plan.asynchronous = is_copy || random() % 2 == 0;
  return plan;
}

std::string text_of(const SavedVersion& saved) {
  return "step " + std::to_string(saved.step) + " version " + std::to_string(saved.version);
}

/// A folder that jobs save into, one after the other, and what must be in it.
class KilledFolder {
 public:
  /// Runs a job until its moment and looks at what is left. What is wrong; empty: nothing.
  std::string strike(const Plan& plan, KillRecord& record) {
    if (const std::string fault = run(plan, record); !fault.empty()) return fault;
    if (!record.phase) return "the moment never came";
    if (record.loaded && *record.loaded != newest_) {
      return "loaded " + text_of(*record.loaded) + ", expected " + text_of(newest_);
    }
    if (record.saved) saved_ = *record.saved;
    return look();
  }

 private:
  std::string run(const Plan& plan, KillRecord& record) {
    const std::filesystem::path socket = folder_.path() / "socket";
    launch::LocalJob job = job_of(kNumRanks, "saves until killed",
                                  {root_.string(), socket.string(), plan.asynchronous ? "asynchronous" : "waiting"});
    if (!plan.refused.empty()) job.command.push_back(plan.refused);
    JobKiller killer(socket, root_, plan.moment);
    job.when_started = [&](const std::vector<int>& processes) { record = killer.watch(processes, 40s); };
    const auto results = launch::run(job);
    std::filesystem::remove(socket);
    for (const launch::RankResult& result : results) {
      if (result.exit_code != kKilled)
        return "a rank ended by itself with " + std::to_string(result.exit_code) + ": " + result.output;
    }
    return "";
  }

  std::string look() {
    const std::vector<std::int64_t> steps = list_steps(root_);
    newest_ = {};
    for (const std::int64_t step : steps) {
      try {
        const SavedStep saved(root_ / step_folder_name(step));
        if (const std::string faults = faults_of(saved); !faults.empty()) return faults;
        newest_ = {step, version_of(saved)};
      } catch (const StorageError& error) {
        return std::string("half a step: ") + error.what();
      }
    }
    if (newest_ < saved_) return text_of(saved_) + " was saved, the newest is " + text_of(newest_);
    // All but the last two are removed, but no more than that.
    if (saved_.step >= 2 && steps.size() < 2) return "the step before " + text_of(newest_) + " is lost";
    return "";
  }

  TemporaryFolder folder_;
  std::filesystem::path root_ = std::filesystem::canonical(folder_.path()) / "run" / "checkpoints";
  SavedVersion saved_;   // of which a job said so
  SavedVersion newest_;  // at the end of the last job
};

/// Of a phase.
struct Tally {
  int num_kills = 0;
  int num_before = 0;
  int num_single = 0;
};

/// Kills as many jobs; returns how many in each phase, and prints it.
std::map<SavePhase, Tally> kill_jobs(int num_jobs, unsigned seed) {
  std::mt19937 random(seed);
  std::map<SavePhase, Tally> tallies;
  std::unique_ptr<KilledFolder> folder;
  for (int job = 0; job < num_jobs; ++job) {
    if (job % kJobsOfAFolder == 0) folder = std::make_unique<KilledFolder>();
    const Plan plan = plan_of(job, random);
    KillRecord record;
    const std::string fault = folder->strike(plan, record);
    if (!fault.empty()) {
      ADD_FAILURE() << "seed " << seed << ", job " << job << ", killed at call " << plan.moment.call << " of "
                    << name_of(plan.moment.phase) << ": " << fault;
      folder = std::make_unique<KilledFolder>();
      continue;
    }
    Tally& tally = tallies[*record.phase];
    ++tally.num_kills;
    if (plan.moment.is_before) ++tally.num_before;
    if (plan.moment.victim) ++tally.num_single;
  }
  for (const SavePhase phase : kSavePhases) {
    const Tally& tally = tallies[phase];
    std::printf("%-15s %3d kills: %3d at the call, %3d behind it; %3d of one rank first\n", name_of(phase),
                tally.num_kills, tally.num_before, tally.num_kills - tally.num_before, tally.num_single);
  }
  return tallies;
}

// The third step is saved a second time: six calls give the first three their names, the seventh this one.
TEST(KilledJob, BetweenTheTwoRenamesOfAnExchangeLosesNoStep) {
  static_assert(kTwiceEvery == 3);
  KilledFolder folder;
  KillRecord record;
  Plan plan{.moment = {.phase = SavePhase::kRename, .call = 7, .is_before = true}, .refused = "exchange"};
  EXPECT_EQ(folder.strike(plan, record), "step 3 version 1 was saved, the newest is step 2 version 1");
  plan.moment.call = 3;  // after the two that end the exchange
  folder.strike(plan, record);
  ASSERT_TRUE(record.loaded);
  EXPECT_EQ(text_of(*record.loaded), "step 3 version 2");
}

TEST(KilledJob, LeavesWholeStepsAtAFewMoments) { kill_jobs(12, 20261); }

TEST(KilledJob, LeavesWholeStepsAtThreeHundredMomentsOfEveryPhase) {
  for (auto& [phase, tally] : kill_jobs(300, 2026)) {
    EXPECT_GE(tally.num_kills, 20) << name_of(phase);
    EXPECT_GE(tally.num_single, 1) << name_of(phase);
  }
}

}  // namespace
}  // namespace tessera::testing
