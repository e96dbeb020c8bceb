#pragma once

#include <cstdint>

#include "checkpoint/shared_folder.h"

namespace tessera::checkpoints {

// What rank 0 does beside saving and loading. Where the disk refuses, it warns: the steps that count are there.

/// Removes the steps that the options do not keep, once step `saved` is there.
void remove_old_steps(SharedFolder& folder, std::int64_t saved);

/// See step_draft.h, for what they do and what they require.
void remove_leftovers(SharedFolder& folder);
void finish_exchanges(SharedFolder& folder);

}  // namespace tessera::checkpoints
