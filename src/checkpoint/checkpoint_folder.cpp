#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/step_folders.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/core/log.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <ranges>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/plan_agreement.h"
#include "checkpoint/save_job.h"
#include "checkpoint/save_worker.h"
#include "checkpoint/staging.h"
#include "checkpoint/step_draft.h"

namespace tessera {
namespace {

using namespace checkpoints;  // NOLINT: all of this file is about them

constexpr std::size_t kMaxCopies = 2;
constexpr std::size_t kCopyAlignment = 64;

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

std::uint64_t bytes_of(const SavePlan& plan) {
  std::uint64_t bytes = 0;
  for (const PlannedFile& file : plan.files) bytes += file.num_bytes;
  return bytes;
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
  if (!faults.empty()) throw ConfigError("checkpoint options: " + faults);
}

}  // namespace

class CheckpointFolder::State {
 public:
  State(std::filesystem::path folder, Communicator comm, const CheckpointOptions& options)
      : folder_(std::move(folder)), comm_(std::move(comm)), options_(options), log_("checkpoint", comm_.rank()) {}

  SaveReport save(std::int64_t step, const RankState& state);
  SaveReport wait();
  std::optional<std::int64_t> load_newest(const std::function<void(const SavedStep&)>& restore);
  const std::filesystem::path& folder() const { return folder_; }

 private:
  bool leads() const { return comm_.rank() == 0; }
  std::shared_ptr<StepDraft> begin(std::int64_t step, const SavePlan& plan, std::string& error);
  Sources staged(const std::vector<at::Tensor>& parts, std::shared_ptr<std::byte>& memory);
  void write(StepDraft& draft, const SaveOrder& order, const Sources& sources);
  void remove_old_steps();
  void settle_failures();
  void clean();
  SaveReport told(SaveReport report) const;
  bool all_could(const std::function<void()>& attempt, std::string& damage);
  bool try_load(std::int64_t step, const std::function<void(const SavedStep&)>& restore, std::string& faults);

  std::filesystem::path folder_;
  Communicator comm_;
  CheckpointOptions options_;
  Logger log_;
  PlanAgreement agreement_;
  SaveReport last_;
  bool cleaned_ = false;  // of what an earlier process left
  Staging staging_{kMaxCopies};
  SaveWorker worker_{options_.asynchronous()};  // last: what it does uses the rest
};

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
    std::vector<DraftFile> files;
    for (const PlannedFile& file : plan.files) files.push_back({file.name, file.num_bytes, file.text});
    attempt([&] { return StepDraft::create(FileSystem::disk(), folder_, step, files); });
  }
  error = broadcast_text(comm_, error, 0);
  if (!error.empty()) return nullptr;
  if (!leads()) attempt([&] { return StepDraft::join(FileSystem::disk(), folder_, step); });
  error = first_report(all_gather_texts(comm_, error));
  return error.empty() ? draft : nullptr;
}

Sources CheckpointFolder::State::staged(const std::vector<at::Tensor>& parts, std::shared_ptr<std::byte>& memory) {
  const auto padded = [](std::size_t bytes) { return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment; };
  std::size_t num_bytes = 0;
  for (const at::Tensor& part : parts) num_bytes += padded(part.nbytes());
  memory = staging_.take(num_bytes);
  Sources sources;
  std::byte* place = memory.get();
  for (const at::Tensor& part : parts) {
    at::from_blob(place, part.sizes(), part.options().device(at::kCPU).requires_grad(false)).copy_(part);
    sources.emplace_back(place, part.nbytes());
    place += padded(part.nbytes());
  }
  return sources;
}

void CheckpointFolder::State::write(StepDraft& draft, const SaveOrder& order, const Sources& sources) {
  const std::string left = save_slices(draft, order, sources);
  if (!left.empty()) log_.warning("the step that was replaced is still there: " + left);
  if (order.rank == 0) remove_old_steps();
}

void CheckpointFolder::State::remove_old_steps() {
  for (const std::int64_t step : steps_to_remove(list_steps(folder_), options_.keep_last(), options_.keep_every())) {
    try {
      remove_step(FileSystem::disk(), folder_, step);
    } catch (const StorageError& error) {
      log_.warning("step " + std::to_string(step) + " is to go and stays: " + error.what());
    }
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
  settle_failures();
  auto [plan, values] = agreement_.agree(comm_, state, static_cast<std::uint64_t>(options_.max_file_bytes()));
  last_ = {step, false, false, bytes_of(*plan), {}};
  const auto draft = begin(step, *plan, last_.error);
  if (!draft) return told(last_);

  const auto parts = parts_of(*plan, comm_.rank(), state);
  const SaveOrder order{plan, step, comm_.rank(), std::move(values), options_.patience()};
  const bool on_host = std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.is_cpu(); });
  std::shared_ptr<std::byte> memory;
  Sources sources;
  if (options_.asynchronous() || !on_host) {
    sources = staged(parts, memory);
  } else {
    for (const at::Tensor& part : parts) sources.push_back(bytes_of(part));
  }
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
  std::vector<SaveOutcome> outcomes = worker_.take_outcomes();
  std::string error;
  for (const SaveOutcome& outcome : outcomes) {
    if (error.empty()) error = outcome.error;
  }
  // Rank 0's word counts: every rank has told it. When all have come here, nobody writes any more.
  const auto texts = all_gather_texts(comm_, error);
  if (last_.under_way || !outcomes.empty()) last_ = {last_.step, texts[0].empty(), false, last_.bytes, texts[0]};
  if (leads() && (!cleaned_ || !texts[0].empty())) clean();
  cleaned_ = true;
  return told(last_);
}

void CheckpointFolder::State::clean() {
  try {
    if (std::filesystem::exists(folder_)) remove_leftovers(FileSystem::disk(), folder_);
  } catch (const StorageError& error) {
    log_.warning(std::string("what an unfinished save left cannot be removed: ") + error.what());
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
  damage = first_report(all_gather_texts(comm_, mine));
  if (other) std::rethrow_exception(other);
  return damage.empty();
}

bool CheckpointFolder::State::try_load(std::int64_t step, const std::function<void(const SavedStep&)>& restore,
                                       std::string& faults) {
  std::optional<SavedStep> saved;
  std::string damage;
  // All open it before any goes on: restoring is collective.
  if (all_could([&] { saved.emplace(folder_ / step_folder_name(step)); }, damage) &&
      all_could([&] { restore(*saved); }, damage)) {
    return true;
  }
  faults += (faults.empty() ? "" : "; ") + step_folder_name(step) + ": " + damage;
  if (leads()) log_.error(step_folder_name(step) + " is damaged and is passed over: " + damage);
  return false;
}

std::optional<std::int64_t> CheckpointFolder::State::load_newest(const std::function<void(const SavedStep&)>& restore) {
  std::string listed;
  if (leads() && std::filesystem::exists(folder_)) {
    for (const std::int64_t step : list_steps(folder_)) listed += std::to_string(step) + " ";
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

SaveReport CheckpointFolder::save(std::int64_t step, const RankState& state) { return state_->save(step, state); }

SaveReport CheckpointFolder::wait() { return state_->wait(); }

std::optional<std::int64_t> CheckpointFolder::load_newest(const std::function<void(const SavedStep&)>& restore) {
  return state_->load_newest(restore);
}

}  // namespace tessera
