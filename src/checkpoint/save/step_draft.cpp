#include "checkpoint/save/step_draft.h"

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace tessera::checkpoints::draft_parts {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartPrefix = "part-";
constexpr std::string_view kFailedPrefix = "failed-";
constexpr std::chrono::milliseconds kPeriod{5};

std::string name_of(std::string_view prefix, int rank) {
  std::string digits = std::to_string(rank);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return std::string(prefix) + digits + ".json";
}

void publish_as(FileSystem& files, const fs::path& folder, const std::string& name, std::string_view text) {
  const fs::path draft = folder / ("." + name);
  write_new_file(files, draft, text);
  files.rename(draft, folder / name);
}

/// "rank 3" or "ranks 1, 2, 5 and 12 others".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " others";
  return text;
}

class Waiting {
 public:
  Waiting(FileSystem& files, const fs::path& folder, int num_ranks)
      : files_(files), folder_(folder), parts_(static_cast<std::size_t>(num_ranks)) {}

  /// Ranks whose part is not there. One listing a call, however many ranks there are.
  std::vector<int> look() {
    const std::vector<std::string> names = files_.list(folder_);
    const auto is_there = [&names](const std::string& name) {
      return std::binary_search(names.begin(), names.end(), name);
    };
    std::vector<int> missing;
    for (int rank = 0; rank < static_cast<int>(parts_.size()); ++rank) {
      auto& part = parts_[static_cast<std::size_t>(rank)];
      if (!part && is_there(name_of(kPartPrefix, rank))) part = files_.read(folder_ / name_of(kPartPrefix, rank));
      if (!part && is_there(name_of(kFailedPrefix, rank))) fail(rank);
      if (!part) missing.push_back(rank);
    }
    return missing;
  }

  std::vector<std::string> take() {
    std::vector<std::string> texts;
    for (std::optional<std::string>& part : parts_) texts.push_back(std::move(*part));
    return texts;
  }

 private:
  [[noreturn]] void fail(int rank) {
    const std::optional<std::string> why = files_.read(folder_ / name_of(kFailedPrefix, rank));
    throw StorageError("rank " + std::to_string(rank) + " could not save its part" +
                       (why && !why->empty() ? ": " + *why : ""));
  }

  FileSystem& files_;
  const fs::path& folder_;
  std::vector<std::optional<std::string>> parts_;
};

}  // namespace

void publish(FileSystem& files, const fs::path& folder, int rank, std::string_view text) {
  publish_as(files, folder, name_of(kPartPrefix, rank), text);
}

void publish_failure(FileSystem& files, const fs::path& folder, int rank, std::string_view why) {
  const std::string name = name_of(kFailedPrefix, rank);
  if (try_on_disk([&] { publish_as(files, folder, name, why); })) return;
  // A full disk still has room for an empty file. If even that fails, rank 0 notices because its own writes fail or its
  // timeout expires.
  try_on_disk([&] { files.create(folder / name, 0); });
}

std::vector<std::string> await_all(FileSystem& files, const fs::path& folder, int num_ranks,
                                   std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  Waiting waiting(files, folder, num_ranks);
  while (true) {
    const std::vector<int> missing = waiting.look();
    if (missing.empty()) return waiting.take();
    if (std::chrono::steady_clock::now() >= end) {
      throw StorageError(folder.string() + ": " + ranks_text(missing) + " of " + std::to_string(num_ranks) +
                         " did not write their part within " + std::to_string(timeout.count()) +
                         " ms. Their disk is slow or failed, or they are gone; their own messages tell which");
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

void remove_all(FileSystem& files, const fs::path& folder) {
  for (const std::string& name : files.list(folder)) {
    if (name.starts_with(kPartPrefix)) files.remove_file(folder / name);
  }
}

}  // namespace tessera::checkpoints::draft_parts

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

namespace fs = std::filesystem;

struct StepDraft::State {
  State(FileSystem& used_files, const fs::path& used_root, std::int64_t used_step)
      : files(used_files), root(used_root), step(used_step), folder(saving_path(used_root, used_step)) {}

  OutputFile& file(const std::string& name) {
    const std::lock_guard lock(mutex);
    auto& file = written[name];
    if (!file) file = files.open(folder / name);
    return *file;
  }

  void make(const DraftFile& made) {
    std::unique_ptr<OutputFile> file = files.create(folder / made.name, made.num_bytes);
    if (!made.head.empty()) file->write({{0, std::as_bytes(std::span(made.head))}});
    written[made.name] = std::move(file);
  }

  /// Called before another rank has joined: frees the space on a disk that is full, since this draft will not become a
  /// step.
  void give_up() {
    written.clear();
    try_on_disk([this] { files.remove_folder(folder); });  // else remove_leftovers() does it later
  }

  FileSystem& files;
  fs::path root;
  std::int64_t step;
  fs::path folder;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<OutputFile>> written;  // by this rank
  std::atomic<bool> is_synced = true;
};

namespace {

/// Renames a folder, then removes it. A folder that still has the name of a step on the disk must not lose its files,
/// so the new name is brought to the disk first.
void discard(FileSystem& files, const fs::path& root, const fs::path& folder, const fs::path& removing) {
  if (folder != removing) {
    if (files.exists(removing)) files.remove_folder(removing);
    files.rename(folder, removing);
  }
  files.sync_folder(root);
  files.remove_folder(removing);
}

/// Whether a draft lacks nothing but its name: its manifest is written when all else is on the disk.
bool is_complete(FileSystem& files, const fs::path& draft) {
  const std::optional<std::string> manifest = files.read(draft / kManifestName);
  if (!manifest) return false;
  try {
    Manifest::parse(*manifest, draft.string());
    return true;
  } catch (const StorageError&) {
    return false;
  }
}

/// Makes the folder, and those above it that are missing.
void make_root(FileSystem& files, const fs::path& root) {
  if (root.empty() || files.exists(root)) return;
  if (!root.has_filename()) return make_root(files, root.parent_path());  // "checkpoints/"
  const fs::path above = root.parent_path();
  make_root(files, above);
  files.make_folder(root);
  try {
    files.sync_folder(above.empty() ? "." : above);
  } catch (const StorageError&) {
    // Otherwise the next save would find the folder, and not notice that its name is not on the disk.
    files.remove_folder(root);
    throw;
  }
}

}  // namespace

StepDraft::StepDraft(std::unique_ptr<State> state) : state_(std::move(state)) {}
StepDraft::~StepDraft() = default;
StepDraft::StepDraft(StepDraft&&) noexcept = default;
StepDraft& StepDraft::operator=(StepDraft&&) noexcept = default;

StepDraft StepDraft::create(FileSystem& files, const fs::path& root, std::int64_t step,
                            const std::vector<DraftFile>& draft_files) {
  auto state = std::make_unique<State>(files, root, step);
  make_root(files, root);
  if (files.exists(state->folder)) discard(files, root, state->folder, removing_path(root, step));
  files.make_folder(state->folder);
  state->is_synced = false;
  try {
    for (const DraftFile& made : draft_files) state->make(made);
  } catch (const StorageError&) {
    state->give_up();
    throw;
  }
  return StepDraft(std::move(state));
}

StepDraft StepDraft::join(FileSystem& files, const fs::path& root, std::int64_t step,
                          std::chrono::milliseconds timeout) {
  auto state = std::make_unique<State>(files, root, step);
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!files.exists(state->folder)) {
    if (std::chrono::steady_clock::now() >= end) {
      throw StorageError(state->folder.string() +
                         ", which rank 0 has made, is not there. Checkpoints need a folder that "
                         "all ranks see; if this is one, somebody removed it");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return StepDraft(std::move(state));
}

const fs::path& StepDraft::folder() const { return state_->folder; }

void StepDraft::write(const std::string& file, std::vector<WriteRange> ranges) {
  OutputFile& output = state_->file(file);
  state_->is_synced = false;
  output.write(std::move(ranges));
}

void StepDraft::sync() {
  if (state_->is_synced) return;
  for (const auto& [name, file] : state_->written) file->sync();
  state_->is_synced = true;
}

void StepDraft::publish_part(int rank, std::string_view text) {
  sync();
  draft_parts::publish(state_->files, state_->folder, rank, text);
}

void StepDraft::publish_failure(int rank, std::string_view why) {
  draft_parts::publish_failure(state_->files, state_->folder, rank, why);
}

std::vector<std::string> StepDraft::await_parts(int num_ranks, std::chrono::milliseconds timeout) {
  return draft_parts::await_all(state_->files, state_->folder, num_ranks, timeout);
}

std::string StepDraft::commit(std::string_view manifest) {
  FileSystem& files = state_->files;
  sync();
  draft_parts::remove_all(files, state_->folder);
  write_new_file(files, state_->folder / kManifestName, manifest);
  files.sync_folder(state_->folder);
  const fs::path step = step_path(state_->root, state_->step);
  const fs::path removing = removing_path(state_->root, state_->step);
  if (!files.exists(step)) {
    files.rename(state_->folder, step);
    files.sync_folder(state_->root);
    return "";
  }
  if (files.exists(removing)) discard(files, state_->root, removing, removing);
  files.exchange(state_->folder, step, removing);
  files.sync_folder(state_->root);
  try {
    const fs::path former = files.exists(removing) ? removing : state_->folder;
    discard(files, state_->root, former, removing);
  } catch (const StorageError& error) {
    return error.what();  // the step is there all the same
  }
  return "";
}

void remove_step(FileSystem& files, const fs::path& root, std::int64_t step) {
  discard(files, root, step_path(root, step), removing_path(root, step));
}

void finish_exchanges(FileSystem& files, const fs::path& root) {
  if (!files.exists(root)) return;
  for (const std::string& name : files.list(root)) {
    const std::optional<std::int64_t> step = step_of_removing(name);
    if (!step || files.exists(step_path(root, *step)) || !is_complete(files, saving_path(root, *step))) continue;
    files.rename(saving_path(root, *step), step_path(root, *step));
    files.sync_folder(root);
  }
}

void remove_leftovers(FileSystem& files, const fs::path& root) {
  if (!files.exists(root)) return;
  finish_exchanges(files, root);
  for (const std::string& name : files.list(root)) {
    if (is_leftover(name)) discard(files, root, root / name, root / name);
  }
}

}  // namespace tessera::checkpoints
