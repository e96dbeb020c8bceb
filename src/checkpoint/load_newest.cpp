#include "checkpoint/load_newest.h"

#include <tessera/checkpoint/step_folders.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>

#include <exception>
#include <memory>
#include <ranges>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/folder_cleanup.h"

namespace tessera::checkpoints {
namespace {

using Restore = std::function<void(const SavedStep&)>;

/// Whether every rank could do it; else `damage` says which could not. Only StorageError counts as damage.
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
  damage = first_report(all_gather_texts(folder.patient(), mine));
  if (other) std::rethrow_exception(other);
  return damage.empty();
}

/// What rank 0 finds: the ranks might not find the same.
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

/// Else adds to `faults` why not.
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
