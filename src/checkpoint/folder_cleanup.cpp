#include "checkpoint/folder_cleanup.h"

#include <tessera/checkpoint/step_folders.h>
#include <tessera/core/error.h>

#include <string>
#include <vector>

#include "checkpoint/step_draft.h"

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
    // Steps behind the saved one do not count: a training that passed over them, because they are damaged, has not
    // reached them again, and would have to part with what it saves now.
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

/// A reader may not be allowed to: then the step before is the newest.
void finish_exchanges(SharedFolder& folder) {
  do_or_warn(folder, "whether a step lacks nothing but its name cannot be settled",
             [&] { finish_exchanges(folder.files(), folder.path()); });
}

}  // namespace tessera::checkpoints
