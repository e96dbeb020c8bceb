#include "checkpoint/save/step_saver.h"

#include <tessera/comm/texts.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/load/load_newest.h"

namespace tessera::checkpoints {
namespace {

std::uint64_t plan_bytes(const SavePlan& plan) {
  std::uint64_t bytes = 0;
  for (const PlannedFile& file : plan.files) bytes += file.num_bytes;
  return bytes;
}

/// Null, with the reason in `error`, when `open` throws StorageError.
template <typename Open>
std::shared_ptr<StepDraft> try_open(const Open& open, std::string& error) {
  try {
    return std::make_shared<StepDraft>(open());
  } catch (const StorageError& fault) {
    error = fault.what();
    return nullptr;
  }
}

/// The error of rank 0 and, unless that contains it, the first error of another rank: on a full disk a rank may be
/// unable to report its reason to rank 0.
std::string leading_error(const std::vector<std::string>& errors) {
  if (errors[0].empty()) return {};
  std::string text = "rank 0: " + errors[0];
  for (std::size_t rank = 1; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    if (text.find(errors[rank]) == std::string::npos) text += "; rank " + std::to_string(rank) + ": " + errors[rank];
    break;
  }
  return text;
}

std::string first_error(const std::vector<SaveOutcome>& outcomes) {
  const auto failed = std::ranges::find_if(outcomes, [](const SaveOutcome& outcome) { return !outcome.error.empty(); });
  return failed == outcomes.end() ? "" : failed->error;
}

}  // namespace

StepSaver::StepSaver(SharedFolder& folder)
    : folder_(folder),
      agreement_(folder.comm(), static_cast<std::uint64_t>(folder.options().max_file_bytes())),
      worker_(folder.options().asynchronous()) {}

SaveReport StepSaver::save(std::int64_t step, const RankState& state) {
  const at::NoGradGuard no_grad;
  // A step has one draft at a time.
  if (std::ranges::find(submitted_, step) != submitted_.end()) wait();
  settle_failures();
  const CheckpointOptions& options = folder_.options();
  const int rank = folder_.comm().rank();
  auto [plan, copy_layout, values] = agreement_.agree(state);
  last_ = {step, false, false, plan_bytes(*plan), {}};
  auto draft = begin(step, *plan, last_.error);
  if (!draft) return reported(last_);

  const auto parts = written_parts(*plan, rank, state);
  SaveOrder order{plan, step, rank, std::move(values), options.peer_timeout(), std::make_shared<ByteCount>()};
  for (const at::Tensor& part : parts) order.count->total += part.nbytes();
  submit(std::move(draft), std::move(order), sources_of(parts, *copy_layout));
  if (!options.asynchronous()) return wait();
  last_.under_way = true;
  return last_;
}

/// Removes what failed saves left before another one needs the space. Every failure is reported to rank 0.
void StepSaver::settle_failures() {
  const bool clean = folder_.leads() && cleaned_ && !worker_.has_failed();
  if (broadcast_text(folder_.comm(), clean ? "clean" : "", 0).empty()) wait();
}

/// Rank 0 makes the folder and the files, before any other rank looks for them. Returns null, with the reason in
/// `error`, when a rank fails.
std::shared_ptr<StepDraft> StepSaver::begin(std::int64_t step, const SavePlan& plan, std::string& error) {
  std::shared_ptr<StepDraft> draft;
  if (folder_.leads()) draft = try_open([&] { return create(step, plan); }, error);
  error = broadcast_text(folder_.comm(), error.empty() ? "" : "rank 0: " + error, 0);
  if (!error.empty()) return nullptr;
  if (!folder_.leads()) {
    draft = try_open([&] { return StepDraft::join(folder_.files(), folder_.path(), step); }, error);
  }
  error = first_report(all_gather_texts(folder_.comm(), error));
  had_folder_ = true;
  if (error.empty()) return draft;
  cleaned_ = false;  // rank 0 has made a draft that nobody will write into
  return nullptr;
}

StepDraft StepSaver::create(std::int64_t step, const SavePlan& plan) {
  warn_of_a_vanished_folder();
  std::vector<DraftFile> files;
  for (const PlannedFile& file : plan.files) files.push_back({file.name, file.num_bytes, file.text});
  return StepDraft::create(folder_.files(), folder_.path(), step, files);
}

/// Warns when the folder of earlier saves is gone, before a new one is made without the older steps: a disk that is no
/// longer mounted looks like this.
void StepSaver::warn_of_a_vanished_folder() const {
  std::error_code ignored;  // making the draft will report it
  if (!had_folder_ || std::filesystem::exists(folder_.path(), ignored)) return;
  folder_.log().warning(folder_.path().string() +
                        " is gone, with the steps in it, and is made anew. Is its disk still mounted?");
}

/// The parts themselves, or a copy if training goes on meanwhile or the parts are not on the host.
SaveSources StepSaver::sources_of(const std::vector<at::Tensor>& parts, const CopyLayout& layout) {
  const bool on_host = std::ranges::all_of(parts, [](const at::Tensor& part) { return part.is_cpu(); });
  if (on_host && !folder_.options().asynchronous()) return SaveSources::of(parts);
  return SaveSources::copied(parts, layout, staging_);
}

void StepSaver::submit(std::shared_ptr<StepDraft> draft, SaveOrder order, SaveSources sources) {
  const std::int64_t step = order.step;
  submitted_.push_back(step);
  if (submitted_.size() > kMaxCopies) submitted_.pop_front();
  worker_.submit(step, [this, draft = std::move(draft), order = std::move(order), sources = std::move(sources)] {
    write(*draft, order, sources);
  });
}

void StepSaver::write(StepDraft& draft, const SaveOrder& order, const SaveSources& sources) {
  const observe::TransferLine line = folder_.line_of("saving", order.step, order.count);
  sources.wait();
  const std::string left = save_slices(draft, order, sources.bytes);
  if (!left.empty()) folder_.log().warning("the step that was replaced is still there: " + left);
  if (folder_.leads()) remove_old_steps(folder_, order.step);
}

SaveReport StepSaver::wait() {
  worker_.wait();
  submitted_.clear();
  const std::vector<SaveOutcome> outcomes = worker_.take_outcomes();
  // Rank 0's error decides, since every rank has reported to it. When all ranks have arrived here, none writes any
  // more.
  const std::string error = leading_error(all_gather_texts(folder_.comm_for_long_waits(), first_error(outcomes)));
  if (last_.under_way || !outcomes.empty()) last_ = {last_.step, error.empty(), false, last_.bytes, error};
  if (folder_.leads() && (!cleaned_ || !error.empty())) remove_leftovers(folder_);
  cleaned_ = true;
  return reported(last_);
}

SaveReport StepSaver::reported(SaveReport report) const {
  if (folder_.leads() && !report.error.empty()) {
    folder_.log().error("step " + std::to_string(report.step) + " was not saved: " + report.error +
                        ". Training goes on; older steps are as they were");
  }
  return report;
}

}  // namespace tessera::checkpoints
