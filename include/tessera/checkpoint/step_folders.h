#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// "step-00000020": at least eight digits. Requires: step >= 0.
std::string step_folder_name(std::int64_t step);
/// None for any other name, also for one with more zeros than step_folder_name() writes.
std::optional<std::int64_t> step_of_folder(std::string_view name);

/// Steps with a folder of that name, ascending; intact or not. None when `root` does not exist.
/// Throws StorageError when it is no folder or cannot be read.
std::vector<std::int64_t> list_steps(const std::filesystem::path& root);

/// Which to remove, ascending, so that the last `keep_last` (0: all) and those that `keep_every` divides (0: no
/// more) remain. Pure. Requires: `steps` ascend.
std::vector<std::int64_t> steps_to_remove(const std::vector<std::int64_t>& steps, std::int64_t keep_last,
                                          std::int64_t keep_every);

}  // namespace tessera
