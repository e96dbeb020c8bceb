#include <tessera/checkpoint/saved_step.h>
#include <tessera/checkpoint/step_folders.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <ranges>

namespace tessera {
namespace {

/// Empty when there is nothing wrong.
std::string fault_of(const std::filesystem::path& folder, bool thorough) {
  try {
    const SavedStep step(folder);
    if (!thorough) return "";
    const std::vector<std::string> faults = step.verify();
    if (faults.empty()) return "";
    return faults[0] + (faults.size() == 1 ? "" : " (and " + std::to_string(faults.size() - 1) + " more faults)");
  } catch (const StorageError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
}

}  // namespace

std::optional<std::int64_t> newest_intact(const std::filesystem::path& root, bool thorough,
                                          std::vector<std::string>& skipped) {
  const std::vector<std::int64_t> steps = list_steps(root);
  for (const std::int64_t step : std::views::reverse(steps)) {
    const std::string fault = fault_of(root / step_folder_name(step), thorough);
    if (fault.empty()) return step;
    skipped.push_back("step " + std::to_string(step) + " is not whole: " + fault);
  }
  return std::nullopt;
}

}  // namespace tessera
