#include "checkpoint/step_draft.h"

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "checkpoint/draft_parts.h"
#include "checkpoint/step_paths.h"

namespace tessera::checkpoints {

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

  /// Before anybody has joined: a disk that is full should not stay so for what will be no step.
  void give_up() {
    written.clear();
    try_on_disk([this] { files.remove_folder(folder); });  // what is left then is a leftover like any other
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

/// Removes a folder; its name goes first. What still has the name of a step on the disk must not lose its files: hence
/// the names are brought there before.
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
    // Else the next save would find the folder, and not know that its name is not on the disk.
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
                          std::chrono::milliseconds patience) {
  auto state = std::make_unique<State>(files, root, step);
  const auto end = std::chrono::steady_clock::now() + patience;
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
