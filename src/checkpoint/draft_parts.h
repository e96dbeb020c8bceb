#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_system.h"

/// How ranks tell rank 0 what they have written: by a file each in the folder of the draft.
namespace tessera::checkpoints::draft_parts {

/// The file appears complete: another name first, then a rename. Its bytes are on the disk, as every other client of a
/// network's file system may ask for them.
void publish(FileSystem& files, const std::filesystem::path& folder, int rank, std::string_view text);
/// The same for a rank that has none to give; without a reason where the disk does not take one. Never throws.
void publish_failure(FileSystem& files, const std::filesystem::path& folder, int rank, std::string_view why);

/// Blocks: until the parts of all ranks are there. See StepDraft::await_parts().
std::vector<std::string> await_all(FileSystem& files, const std::filesystem::path& folder, int num_ranks,
                                   std::chrono::milliseconds timeout);

/// Of all ranks.
void remove_all(FileSystem& files, const std::filesystem::path& folder);

}  // namespace tessera::checkpoints::draft_parts
