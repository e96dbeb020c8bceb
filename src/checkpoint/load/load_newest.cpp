#include "checkpoint/load/load_newest.h"

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/safetensors.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <ranges>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/save/step_draft.h"

namespace tessera::checkpoints {
namespace {

template <typename Action>
void do_or_warn(const SharedFolder& folder, const std::string& otherwise, const Action& action) {
  try {
    action();
  } catch (const StorageError& error) {
    folder.log().warning(otherwise + ": " + error.what());
  }
}

}  // namespace

void remove_old_steps(SharedFolder& folder, std::int64_t saved) {
  do_or_warn(folder, "old steps that are to go stay", [&] {
    std::vector<std::int64_t> steps = list_steps(folder.path());
    // Steps newer than the saved one do not count. A training that skipped them because they are damaged has not
    // reached them again; if they counted, the steps that it saves now would be removed.
    std::erase_if(steps, [saved](std::int64_t step) { return step > saved; });
    const CheckpointOptions& options = folder.options();
    for (const std::int64_t step : steps_to_remove(steps, options.keep_last(), options.keep_every())) {
      remove_step(folder.files(), folder.path(), step);
    }
  });
}

void remove_leftovers(SharedFolder& folder) {
  do_or_warn(folder, "what an unfinished save left cannot be removed",
             [&] { remove_leftovers(folder.files(), folder.path()); });
}

/// The process may not be allowed to rename; then the step before is the newest.
void finish_exchanges(SharedFolder& folder) {
  do_or_warn(folder, "whether a step lacks nothing but its name cannot be settled",
             [&] { finish_exchanges(folder.files(), folder.path()); });
}

namespace {

using Restore = std::function<void(const SavedStep&)>;

/// Runs `attempt` and returns whether it succeeded on every rank; else `damage` names a rank and its reason. Only
/// StorageError counts as damage.
bool all_could(const SharedFolder& folder, const std::function<void()>& attempt, std::string& damage) {
  std::string mine;
  std::exception_ptr other;
  try {
    attempt();
  } catch (const StorageError& error) {
    mine = error.what();
  } catch (...) {
    other = std::current_exception();
  }
  damage = first_report(all_gather_texts(folder.comm_for_long_waits(), mine));
  if (other) std::rethrow_exception(other);
  return damage.empty();
}

/// The steps that rank 0 finds: the ranks might not all find the same.
std::vector<std::int64_t> steps_to_try(SharedFolder& folder, bool is_saving) {
  std::string listed;
  const auto list = [&] {
    if (!folder.leads()) return;
    if (!is_saving) finish_exchanges(folder);
    for (const std::int64_t step : list_steps(folder.path())) listed += std::to_string(step) + " ";
  };
  std::string fault;
  if (!all_could(folder, list, fault)) throw StorageError(fault);
  std::istringstream text(broadcast_text(folder.comm(), listed, 0));
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; text >> step;) steps.push_back(step);
  return steps;
}

/// Whether all ranks loaded the step; if not, adds the reason to `faults`.
bool try_load(const SharedFolder& folder, std::int64_t step, const Restore& restore, std::string& faults) {
  const std::string name = step_folder_name(step);
  const auto count = std::make_shared<ByteCount>();
  const observe::TransferLine line = folder.line_of("loading", step, count);
  std::optional<SavedStep> saved;
  // All open it before any goes on: restoring is collective.
  const auto open = [&] {
    saved.emplace(folder.path() / name);
    if (line.is_shown()) saved->count_reads(count);
    if (folder.comm().size() == 1) saved->read_alone();
  };
  std::string damage;
  if (all_could(folder, open, damage) && all_could(folder, [&] { restore(*saved); }, damage)) return true;
  faults += (faults.empty() ? "" : "; ") + name + ": " + damage;
  if (folder.leads()) folder.log().error(name + " is damaged and is passed over: " + damage);
  return false;
}

}  // namespace

std::optional<std::int64_t> load_newest(SharedFolder& folder, bool is_saving, const Restore& restore) {
  const std::vector<std::int64_t> steps = steps_to_try(folder, is_saving);
  if (steps.empty()) return std::nullopt;
  std::string faults;
  for (const std::int64_t step : std::views::reverse(steps)) {
    if (try_load(folder, step, restore, faults)) return step;
  }
  throw StorageError("no step in " + folder.path().string() + " is intact: " + faults +
                     ". Look with `tessera inspect checkpoint`, or start anew in an empty folder");
}

}  // namespace tessera::checkpoints

namespace tessera {
namespace {

std::string described(StoredDtype dtype, const std::vector<std::int64_t>& shape) {
  return std::string(dtype_name(dtype)) + " " + checkpoints::shape_text(shape);
}

void check_fits(const SavedStep& step, const HeldSlice& slice) {
  const ManifestTensor* const stored = step.manifest().find(slice.group, slice.name);
  const std::string title = step.folder().string() + ": tensor \"" + slice.name + "\" of \"" + slice.group + "\"";
  if (stored == nullptr) throw ConfigError(title + " is not there");
  const StoredDtype wanted = to_stored_dtype(slice.values.scalar_type());
  if (stored->dtype == wanted && stored->shape == slice.slice.shape()) return;
  throw ConfigError(title + " is " + described(stored->dtype, stored->shape) + ", expected " +
                    described(wanted, slice.slice.shape()));
}

void read_slice(const SavedStep& step, const HeldSlice& slice) {
  const at::Tensor values = slice.values.detach();
  const bool in_place = values.is_cpu() && values.is_contiguous();
  const at::Tensor host = in_place ? values : at::empty(values.sizes(), values.options().device(at::kCPU));
  step.read(slice.group, slice.name, slice.slice, {static_cast<std::byte*>(host.data_ptr()), host.nbytes()});
  if (!in_place) values.copy_(host);
}

}  // namespace

void read_slices(const SavedStep& step, const std::vector<HeldSlice>& slices) {
  const at::NoGradGuard no_grad;
  for (const HeldSlice& slice : slices) {
    check_fits(step, slice);
    step.announce_reads(slice.values.nbytes());
  }
  for (const HeldSlice& slice : slices) {
    if (slice.slice.num_elements() > 0) read_slice(step, slice);
  }
}

}  // namespace tessera
