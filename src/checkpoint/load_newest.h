#pragma once

#include <tessera/checkpoint/saved_step.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/shared_folder.h"

namespace tessera::checkpoints {

/// CheckpointFolder::load_newest(). `is_saving`, of rank 0: this process may be at work in the folder, so that nothing
/// in it may be taken for what a crash left.
std::optional<std::int64_t> load_newest(SharedFolder& folder, bool is_saving,
                                        const std::function<void(const SavedStep&)>& restore);

}  // namespace tessera::checkpoints
