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
