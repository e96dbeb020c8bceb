#pragma once

#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/held_slice.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/plan/plan_agreement.h"
#include "checkpoint/save/save_job.h"
#include "checkpoint/save/save_sources.h"
#include "checkpoint/save/save_worker.h"
#include "checkpoint/save/step_draft.h"
#include "checkpoint/shared_folder.h"

namespace tessera::checkpoints {

/// The saves of a CheckpointFolder, on this rank. Its destructor waits for those that are under way.
/// Thread-safety: one thread.
class StepSaver {
 public:
  /// `folder` must outlive it.
  explicit StepSaver(SharedFolder& folder);

  /// CheckpointFolder::save() and wait().
  SaveReport save(std::int64_t step, const RankState& state);
  SaveReport wait();
  /// Blocks: until no save is under way on this rank.
  void wait_for_this_rank() { worker_.wait(); }
  /// False when a save may be under way.
  bool is_idle() const { return submitted_.empty(); }

 private:
  static constexpr std::size_t kMaxCopies = 2;

  void settle_failures();
  std::shared_ptr<StepDraft> begin(std::int64_t step, const SavePlan& plan, std::string& error);
  StepDraft create(std::int64_t step, const SavePlan& plan);
  void warn_of_a_vanished_folder() const;
  SaveSources sources_of(const std::vector<at::Tensor>& parts, const CopyLayout& layout);
  void submit(std::shared_ptr<StepDraft> draft, SaveOrder order, SaveSources sources);
  void write(StepDraft& draft, const SaveOrder& order, const SaveSources& sources);
  SaveReport reported(SaveReport report) const;

  SharedFolder& folder_;
  PlanAgreement agreement_;
  SaveReport last_;
  std::deque<std::int64_t> submitted_;  // those that may be under way: as many as there are copies
  bool cleaned_ = false;                // of what an earlier process, or a save that failed, left
  bool had_folder_ = false;
  Staging staging_{kMaxCopies};
  SaveWorker worker_;  // last, so destroyed first: its thread uses the rest
};

}  // namespace tessera::checkpoints
