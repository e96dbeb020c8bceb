#include "checkpoint/step_paths.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

namespace tessera::checkpoints {
namespace {

constexpr std::string_view kSaving = ".saving";
constexpr std::string_view kRemoving = ".removing";

std::string step_folder_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return "step-" + digits;
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  constexpr std::string_view kStart = "step-";
  if (!name.starts_with(kStart)) return std::nullopt;
  std::int64_t step = 0;
  const auto result = std::from_chars(name.data() + kStart.size(), name.data() + name.size(), step);
  if (result.ec != std::errc() || step_folder_name(step) != name) return std::nullopt;
  return step;
}

std::filesystem::path hidden_path(const std::filesystem::path& root, std::int64_t step, std::string_view end) {
  return root / ("." + step_folder_name(step) + std::string(end));
}

}  // namespace

std::filesystem::path step_path(const std::filesystem::path& root, std::int64_t step) {
  return root / step_folder_name(step);
}

std::filesystem::path saving_path(const std::filesystem::path& root, std::int64_t step) {
  return hidden_path(root, step, kSaving);
}

std::filesystem::path removing_path(const std::filesystem::path& root, std::int64_t step) {
  return hidden_path(root, step, kRemoving);
}

bool is_leftover(std::string_view name) {
  if (!name.starts_with('.')) return false;
  name.remove_prefix(1);
  for (const std::string_view end : {kSaving, kRemoving}) {
    if (name.ends_with(end) && step_of_folder(name.substr(0, name.size() - end.size()))) return true;
  }
  return false;
}

}  // namespace tessera::checkpoints
