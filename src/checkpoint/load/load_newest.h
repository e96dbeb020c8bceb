#pragma once

#include <tessera/checkpoint/saved_step.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/shared_folder.h"

namespace tessera::checkpoints {

// What rank 0 does besides saving and loading. When the disk fails here, it only warns: the steps themselves are
// intact.

/// Removes the steps that the options do not keep, once step `saved` is there.
void remove_old_steps(SharedFolder& folder, std::int64_t saved);

/// See step_draft.h, for what they do and what they require.
void remove_leftovers(SharedFolder& folder);
void finish_exchanges(SharedFolder& folder);

/// CheckpointFolder::load_newest(). `is_saving`, used on rank 0: this process may be saving into the folder, so nothing
/// in it may be treated as the leftover of a crash.
std::optional<std::int64_t> load_newest(SharedFolder& folder, bool is_saving,
                                        const std::function<void(const SavedStep&)>& restore);

}  // namespace tessera::checkpoints
