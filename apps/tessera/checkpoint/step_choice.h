#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::app {

/// The steps that a path on the command line names: the path itself, or the steps in that folder, ascending.
/// Throws ConfigError when it is no step and holds none.
std::vector<std::filesystem::path> chosen_steps(const std::filesystem::path& path);

/// The one step that a path names. Throws ConfigError when it holds several, or none.
std::filesystem::path chosen_step(const std::filesystem::path& path);

/// "step 20" of a folder "step-00000020", else the name of the folder.
std::string step_title(const std::filesystem::path& folder);

}  // namespace tessera::app
