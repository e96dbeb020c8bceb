#include "tessera/checkpoint/step_choice.h"

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

namespace tessera::app {
namespace {

std::string name_of(const std::filesystem::path& folder) {
  const auto path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

std::vector<std::filesystem::path> chosen_steps(const std::filesystem::path& path) {
  std::error_code fault;
  if (!std::filesystem::is_directory(path, fault)) {
    throw ConfigError(path.string() + " is no folder" + (fault ? ": " + fault.message() : "") +
                      "; expected a step, or a folder with steps");
  }
  if (step_of_folder(name_of(path)) || std::filesystem::exists(path / kManifestName)) return {path};
  std::vector<std::filesystem::path> steps;
  for (const std::int64_t step : list_steps(path)) steps.push_back(path / step_folder_name(step));
  if (steps.empty()) {
    throw ConfigError(path.string() + " holds no checkpoint: expected folders such as step-00000020, or a " +
                      std::string(kManifestName));
  }
  return steps;
}

std::filesystem::path chosen_step(const std::filesystem::path& path) {
  const auto steps = chosen_steps(path);
  if (steps.size() == 1) return steps[0];
  throw ConfigError(path.string() + " holds " + std::to_string(steps.size()) + " steps; name one of them, as " +
                    steps.back().string());
}

std::string step_title(const std::filesystem::path& folder) {
  const auto step = step_of_folder(name_of(folder));
  return step ? "step " + std::to_string(*step) : name_of(folder);
}

}  // namespace tessera::app
