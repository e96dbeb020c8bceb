#include "checkpoint/step_paths.h"

#include <tessera/checkpoint/step_folders.h>

#include <string>

namespace tessera::checkpoints {
namespace {

constexpr std::string_view kSaving = ".saving";
constexpr std::string_view kRemoving = ".removing";

std::filesystem::path hidden_path(const std::filesystem::path& root, std::int64_t step, std::string_view end) {
  return root / ("." + step_folder_name(step) + std::string(end));
}

std::optional<std::int64_t> hidden_step(std::string_view name, std::string_view end) {
  if (!name.starts_with('.') || !name.ends_with(end)) return std::nullopt;
  return step_of_folder(name.substr(1, name.size() - 1 - end.size()));
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

bool is_leftover(std::string_view name) { return hidden_step(name, kSaving) || hidden_step(name, kRemoving); }

std::optional<std::int64_t> step_of_removing(std::string_view name) { return hidden_step(name, kRemoving); }

}  // namespace tessera::checkpoints
