#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/step_folders.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/core/log.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <ranges>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "checkpoint/copy_layout.h"
#include "checkpoint/disk_file_system.h"
#include "checkpoint/plan_agreement.h"
#include "checkpoint/save_job.h"
#include "checkpoint/save_worker.h"
#include "checkpoint/staging.h"
#include "checkpoint/step_draft.h"
#include "checkpoint/streaming_copy.h"

namespace tessera {
namespace {

using namespace checkpoints;  // NOLINT: all of this file is about them

constexpr std::size_t kMaxCopies = 2;

using Sources = std::vector<std::span<const std::byte>>;

std::span<const std::byte> bytes_of(const at::Tensor& values) {
  return {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()};
}

/// The elements that this rank writes, of each planned slice.
std::vector<at::Tensor> parts_of(const SavePlan& plan, int rank, const RankState& state) {
  std::vector<at::Tensor> parts;
  for (const PlannedSlice& planned : plan.of_rank[static_cast<std::size_t>(rank)]) {
    const SlicePlace& place = plan.manifest.tensors[planned.tensor].slices[planned.slice].place;
    parts.push_back(
        state.slices[planned.held].values.detach().view({-1}).narrow(0, planned.first, place.num_elements()));
  }
  return parts;
}

void copy_to(std::byte* place, const at::Tensor& part) {
  if (part.is_cpu()) {
    streaming_copy(bytes_of(part), place);
  } else {
    at::from_blob(place, part.sizes(), part.options().device(at::kCPU).requires_grad(false)).copy_(part);
  }
}

std::uint64_t bytes_of(const SavePlan& plan) {
  std::uint64_t bytes = 0;
  for (const PlannedFile& file : plan.files) bytes += file.num_bytes;
  return bytes;
}

/// What rank 0 says, and what made another rank fail, unless that is in it: a full disk has no room to tell rank 0.
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

void check(const CheckpointOptions& options) {
  std::string faults;
  const auto require = [&](bool holds, const std::string& fault) {
    if (!holds) faults += (faults.empty() ? "" : "; ") + fault;
  };
  require(options.keep_last() >= 0, "keep_last is " + std::to_string(options.keep_last()) + ", expected 0 or more");
  require(options.keep_every() >= 0, "keep_every is " + std::to_string(options.keep_every()) + ", expected 0 or more");
  require(options.max_file_bytes() > 0,
          "max_file_bytes is " + std::to_string(options.max_file_bytes()) + ", expected more than 0");
  require(options.patience().count() > 0, "patience must be above 0");
  require(options.progress() == "auto" || options.progress() == "off",
          "progress is \"" + options.progress() + "\", expected \"auto\" or \"off\"");
  if (!faults.empty()) throw ConfigError("checkpoint options: " + faults);
}

}  // namespace

class CheckpointFolder::State {
 public:
  State(std::filesystem::path folder, Communicator comm, const CheckpointOptions& options)
      : folder_(std::move(folder)),
        comm_(std::move(comm)),
        options_(options),
        log_("checkpoint", comm_.rank()),
        files_(DiskOptions{.tell = [log = log_](const std::string& line) { log.info(line); }}) {
    draw_on(observe::process_terminal(leads() && options_.progress() == "auto"));
  }

  SaveReport save(std::int64_t step, const RankState& state);
  SaveReport wait();
  std::optional<std::int64_t> load_newest(const std::function<void(const SavedStep&)>& restore);
  const std::filesystem::path& folder() const { return folder_; }
  void show_on(std::shared_ptr<observe::Terminal> terminal);

 private:
  bool leads() const { return comm_.rank() == 0; }
  /// For what ranks say when they have written or read: a disk may take much longer than a message may.
  Communicator patient() const { return comm_.with_timeout(std::max(comm_.timeout(), options_.patience())); }
  void draw_on(std::shared_ptr<observe::Terminal> terminal);
  observe::TransferLine line_of(const char* verb, std::int64_t step, std::shared_ptr<const ByteCount> count) const;
  std::shared_ptr<StepDraft> begin(std::int64_t step, const SavePlan& plan, std::string& error);
  Sources staged(const SavePlan& plan, const std::vector<at::Tensor>& parts, std::shared_ptr<std::byte>& memory);
  void write(StepDraft& draft, const SaveOrder& order, const Sources& sources);
  void remove_old_steps(std::int64_t saved);
  void warn_of_a_vanished_folder();
  void settle_failures();
  void clean();
  void finish_cut_exchanges();
  SaveReport told(SaveReport report) const;
  bool all_could(const std::function<void()>& attempt, std::string& damage);
  bool try_load(std::int64_t step, const std::function<void(const SavedStep&)>& restore, std::string& faults);

  std::filesystem::path folder_;
  Communicator comm_;
  CheckpointOptions options_;
  std::shared_ptr<observe::Terminal> terminal_;
  Logger log_;
  DiskFileSystem files_;
  PlanAgreement agreement_;
  SaveReport last_;
  std::deque<std::int64_t> submitted_;  // those that may be under way: as many as there are copies
  bool cleaned_ = false;                // of what an earlier process, or a save that failed, left
  bool had_folder_ = false;
  Staging staging_{kMaxCopies};
  SaveWorker worker_{options_.asynchronous()};  // last: what it does uses the rest
};

/// What is logged stands above what is shown.
void CheckpointFolder::State::draw_on(std::shared_ptr<observe::Terminal> terminal) {
  terminal_ = std::move(terminal);
  log_ = Logger("checkpoint", comm_.rank(), LogLevel::kInfo, observe::log_sink_above(terminal_));
}

void CheckpointFolder::State::show_on(std::shared_ptr<observe::Terminal> terminal) {
  worker_.wait();  // it uses the one that there is
  if (options_.progress() == "auto") draw_on(std::move(terminal));
}

/// Rank 0 counts its own bytes: those of the others it would have to ask for.
observe::TransferLine CheckpointFolder::State::line_of(const char* verb, std::int64_t step,
                                                       std::shared_ptr<const ByteCount> count) const {
  std::string title = verb + (" step " + std::to_string(step));
  if (comm_.size() > 1) title += ", rank 0 of " + std::to_string(comm_.size());
  return {terminal_, title, std::move(count)};
}

/// Rank 0 makes the folder and the files, before any other rank looks for them. Nothing, and why, when a rank cannot.
std::shared_ptr<StepDraft> CheckpointFolder::State::begin(std::int64_t step, const SavePlan& plan, std::string& error) {
  std::shared_ptr<StepDraft> draft;
  const auto attempt = [&](const auto& open) {
    try {
      draft = std::make_shared<StepDraft>(open());
    } catch (const StorageError& fault) {
      error = fault.what();
    }
  };
  if (leads()) {
    warn_of_a_vanished_folder();
    std::vector<DraftFile> files;
    for (const PlannedFile& file : plan.files) files.push_back({file.name, file.num_bytes, file.text});
    attempt([&] { return StepDraft::create(files_, folder_, step, files); });
  }
  error = broadcast_text(comm_, error.empty() ? "" : "rank 0: " + error, 0);
  if (!error.empty()) return nullptr;
  if (!leads()) attempt([&] { return StepDraft::join(files_, folder_, step); });
  error = first_report(all_gather_texts(comm_, error));
  had_folder_ = true;
  if (error.empty()) return draft;
  cleaned_ = false;  // rank 0 has made what nobody will write into
  return nullptr;
}

/// A new one is made, and older steps are not in it: a disk that is no longer mounted looks like this.
void CheckpointFolder::State::warn_of_a_vanished_folder() {
  std::error_code ignored;  // who makes the draft will meet it
  if (had_folder_ && !std::filesystem::exists(folder_, ignored)) {
    log_.warning(folder_.string() + " is gone, with the steps in it, and is made anew. Is its disk still mounted?");
  }
}

Sources CheckpointFolder::State::staged(const SavePlan& plan, const std::vector<at::Tensor>& parts,
                                        std::shared_ptr<std::byte>& memory) {
  const CopyLayout layout = CopyLayout::of(plan, comm_.rank());
  memory = staging_.take(layout.num_bytes);
  Sources sources;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::byte* const place = memory.get() + layout.places[i];
    copy_to(place, parts[i]);
    sources.emplace_back(place, parts[i].nbytes());
  }
  return sources;
}

void CheckpointFolder::State::write(StepDraft& draft, const SaveOrder& order, const Sources& sources) {
  const observe::TransferLine line = line_of("saving", order.step, order.count);
  const std::string left = save_slices(draft, order, sources);
  if (!left.empty()) log_.warning("the step that was replaced is still there: " + left);
  if (order.rank == 0) remove_old_steps(order.step);
}

/// Steps behind the saved one do not count: a training that passed over them, because they are damaged, has not reached
/// them again, and would have to part with what it saves now.
void CheckpointFolder::State::remove_old_steps(std::int64_t saved) {
  try {
    std::vector<std::int64_t> steps = list_steps(folder_);
    std::erase_if(steps, [saved](std::int64_t step) { return step > saved; });
    for (const std::int64_t step : steps_to_remove(steps, options_.keep_last(), options_.keep_every())) {
      remove_step(files_, folder_, step);
    }
  } catch (const StorageError& error) {
    log_.warning(std::string("old steps that are to go stay: ") + error.what());
  }
}

SaveReport CheckpointFolder::State::told(SaveReport report) const {
  if (leads() && !report.error.empty()) {
    log_.error("step " + std::to_string(report.step) + " was not saved: " + report.error + ". Training goes on; " +
               "older steps are as they were");
  }
  return report;
}

SaveReport CheckpointFolder::State::save(std::int64_t step, const RankState& state) {
  const at::NoGradGuard no_grad;
  // A step has one draft at a time.
  if (std::ranges::find(submitted_, step) != submitted_.end()) wait();
  settle_failures();
  auto [plan, values] = agreement_.agree(comm_, state, static_cast<std::uint64_t>(options_.max_file_bytes()));
  last_ = {step, false, false, bytes_of(*plan), {}};
  const auto draft = begin(step, *plan, last_.error);
  if (!draft) return told(last_);

  const auto parts = parts_of(*plan, comm_.rank(), state);
  const SaveOrder order{
      plan, step, comm_.rank(), std::move(values), options_.patience(), std::make_shared<ByteCount>()};
  for (const at::Tensor& part : parts) order.count->total += part.nbytes();
  const bool on_host = std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.is_cpu(); });
  std::shared_ptr<std::byte> memory;
  Sources sources;
  if (options_.asynchronous() || !on_host) {
    sources = staged(*plan, parts, memory);
  } else {
    for (const at::Tensor& part : parts) sources.push_back(bytes_of(part));
  }
  submitted_.push_back(step);
  if (submitted_.size() > kMaxCopies) submitted_.pop_front();
  worker_.submit(step, [this, draft, order, sources = std::move(sources), memory] { write(*draft, order, sources); });
  if (!options_.asynchronous()) return wait();
  last_.under_way = true;
  return last_;
}

/// Takes away what failed saves left, before another one needs the room. Rank 0 knows of them all.
void CheckpointFolder::State::settle_failures() {
  const bool clean = leads() && cleaned_ && !worker_.has_failed();
  if (broadcast_text(comm_, clean ? "clean" : "", 0).empty()) wait();
}

SaveReport CheckpointFolder::State::wait() {
  worker_.wait();
  submitted_.clear();
  std::vector<SaveOutcome> outcomes = worker_.take_outcomes();
  std::string error;
  for (const SaveOutcome& outcome : outcomes) {
    if (error.empty()) error = outcome.error;
  }
  // Rank 0's word counts: every rank has told it. When all have come here, nobody writes any more.
  error = leading_error(all_gather_texts(patient(), error));
  if (last_.under_way || !outcomes.empty()) last_ = {last_.step, error.empty(), false, last_.bytes, error};
  if (leads() && (!cleaned_ || !error.empty())) clean();
  cleaned_ = true;
  return told(last_);
}

void CheckpointFolder::State::clean() {
  try {
    remove_leftovers(files_, folder_);
  } catch (const StorageError& error) {
    log_.warning(std::string("what an unfinished save left cannot be removed: ") + error.what());
  }
}

/// A reader may not be allowed to: then the step before is the newest.
void CheckpointFolder::State::finish_cut_exchanges() {
  if (!submitted_.empty()) return;  // it may be this process that is at it
  try {
    finish_exchanges(files_, folder_);
  } catch (const StorageError& error) {
    log_.warning(std::string("whether a step lacks nothing but its name cannot be settled: ") + error.what());
  }
}

/// Whether every rank could do it; else `damage` says which could not. Only StorageError counts as damage.
bool CheckpointFolder::State::all_could(const std::function<void()>& attempt, std::string& damage) {
  std::string mine;
  std::exception_ptr other;
  try {
    attempt();
  } catch (const StorageError& error) {
    mine = error.what();
  } catch (...) {
    other = std::current_exception();
  }
  damage = first_report(all_gather_texts(patient(), mine));
  if (other) std::rethrow_exception(other);
  return damage.empty();
}

bool CheckpointFolder::State::try_load(std::int64_t step, const std::function<void(const SavedStep&)>& restore,
                                       std::string& faults) {
  std::optional<SavedStep> saved;
  std::string damage;
  const auto count = std::make_shared<ByteCount>();
  const observe::TransferLine line = line_of("loading", step, count);
  // All open it before any goes on: restoring is collective.
  const auto open = [&] {
    saved.emplace(folder_ / step_folder_name(step));
    if (line.is_shown()) saved->count_reads(count);
    if (comm_.size() == 1) saved->read_alone();
  };
  if (all_could(open, damage) && all_could([&] { restore(*saved); }, damage)) {
    return true;
  }
  faults += (faults.empty() ? "" : "; ") + step_folder_name(step) + ": " + damage;
  if (leads()) log_.error(step_folder_name(step) + " is damaged and is passed over: " + damage);
  return false;
}

std::optional<std::int64_t> CheckpointFolder::State::load_newest(const std::function<void(const SavedStep&)>& restore) {
  std::string listed;
  std::string fault;
  if (!all_could(
          [&] {
            if (!leads()) return;
            finish_cut_exchanges();
            for (const std::int64_t step : list_steps(folder_)) listed += std::to_string(step) + " ";
          },
          fault)) {
    throw StorageError(fault);
  }
  std::istringstream list(broadcast_text(comm_, listed, 0));
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; list >> step;) steps.push_back(step);
  if (steps.empty()) return std::nullopt;
  std::string faults;
  for (const std::int64_t step : std::views::reverse(steps)) {
    if (try_load(step, restore, faults)) return step;
  }
  throw StorageError("no step in " + folder_.string() + " is intact: " + faults +
                     ". Look with `tessera inspect checkpoint`, or start anew in an empty folder");
}

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, const Ranks& ranks, const CheckpointOptions& options) {
  check(options);
  state_ = std::make_unique<State>(std::move(folder), ranks.comm(), options);
}

CheckpointFolder::~CheckpointFolder() = default;

const std::filesystem::path& CheckpointFolder::folder() const { return state_->folder(); }

void CheckpointFolder::show_on(std::shared_ptr<observe::Terminal> terminal) { state_->show_on(std::move(terminal)); }

SaveReport CheckpointFolder::save(std::int64_t step, const RankState& state) { return state_->save(step, state); }

SaveReport CheckpointFolder::wait() { return state_->wait(); }

std::optional<std::int64_t> CheckpointFolder::load_newest(const std::function<void(const SavedStep&)>& restore) {
  return state_->load_newest(restore);
}

}  // namespace tessera
