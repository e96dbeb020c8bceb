#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace tessera::checkpoints {

/// "ROOT/step-00000020": the step.
std::filesystem::path step_path(const std::filesystem::path& root, std::int64_t step);
/// "ROOT/.step-00000020.saving": it is being written, or a crash left it.
std::filesystem::path saving_path(const std::filesystem::path& root, std::int64_t step);
/// "ROOT/.step-00000020.removing": it is being removed, or a crash left it.
std::filesystem::path removing_path(const std::filesystem::path& root, std::int64_t step);
/// Whether a name is of one of the last two kinds.
bool is_leftover(std::string_view name);
/// The step of a name of the last kind.
std::optional<std::int64_t> step_of_removing(std::string_view name);

}  // namespace tessera::checkpoints
