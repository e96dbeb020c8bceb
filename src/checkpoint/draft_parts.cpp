#include "checkpoint/draft_parts.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <thread>

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
  // A full disk has room for a name. Without it rank 0 learns of it because it cannot write either, or is out of
  // patience.
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
