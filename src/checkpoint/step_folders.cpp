#include <tessera/checkpoint/step_folders.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace tessera {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kDigits = 8;

}  // namespace

std::string step_folder_name(std::int64_t step) {
  if (step < 0) throw InternalError("no step has the number " + std::to_string(step));
  const std::string digits = std::to_string(step);
  return std::string(kStepPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  std::int64_t step = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (fault != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (name != step_folder_name(step)) return std::nullopt;
  return step;
}

std::vector<std::int64_t> list_steps(const std::filesystem::path& root) {
  std::vector<std::int64_t> steps;
  std::error_code fault;
  std::filesystem::directory_iterator entries(root, fault);
  if (fault == std::errc::no_such_file_or_directory) return steps;
  for (const std::filesystem::directory_iterator end; !fault && entries != end; entries.increment(fault)) {
    const auto step = step_of_folder(entries->path().filename().string());
    std::error_code gone;  // while this looks, steps are removed
    if (step && entries->is_directory(gone)) steps.push_back(*step);
  }
  if (fault) throw StorageError("the folder " + root.string() + " cannot be listed: " + fault.message());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::int64_t> steps_to_remove(const std::vector<std::int64_t>& steps, std::int64_t keep_last,
                                          std::int64_t keep_every) {
  if (keep_last < 0 || keep_every < 0) {
    throw ConfigError("expected numbers of at least 0 for which checkpoints to keep, found keep_last " +
                      std::to_string(keep_last) + " and keep_every " + std::to_string(keep_every));
  }
  std::vector<std::int64_t> removed;
  if (keep_last == 0) return removed;
  const auto num_steps = static_cast<std::int64_t>(steps.size());
  for (std::int64_t i = 0; i < num_steps - keep_last; ++i) {
    const std::int64_t step = steps[static_cast<std::size_t>(i)];
    if (keep_every == 0 || step % keep_every != 0) removed.push_back(step);
  }
  return removed;
}

}  // namespace tessera
