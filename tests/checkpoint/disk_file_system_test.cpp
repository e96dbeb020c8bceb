#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/disk/direct_writer.h"
#include "checkpoint/disk/disk_error.h"
#include "checkpoint/disk/disk_file_system.h"
#include "support/error_message.h"
#include "support/no_more_descriptors.h"
#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFolder;
using testing::text_of_file;

std::string random_bytes(std::size_t count, std::uint32_t seed) {
  std::string bytes(count, '\0');
  std::mt19937 random(seed);
  std::generate(bytes.begin(), bytes.end(), [&random] { return static_cast<char>(random()); });
  return bytes;
}

/// Cuts a text into ranges of many lengths, which `ranks` take in turn.
std::vector<std::vector<WriteRange>> cut(const std::string& text, std::size_t ranks, std::uint32_t seed) {
  const std::vector<std::size_t> lengths{1, 511, 4096, 5000, 100'000, 300'001, 1 << 20, 5'000'003, 9'000'000};
  std::mt19937 random(seed);
  std::vector<std::vector<WriteRange>> cuts(ranks);
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t begin = 0, turn = 0; begin < bytes.size(); ++turn) {
    const std::size_t length = std::min(lengths[random() % lengths.size()], bytes.size() - begin);
    cuts[turn % ranks].push_back({begin, bytes.subspan(begin, length)});
    begin += length;
  }
  return cuts;
}

class DiskWrites : public ::testing::TestWithParam<bool> {};

TEST_P(DiskWrites, OfSeveralAtOnceIntoOneFileAreAllThere) {
  constexpr std::size_t kNumWriters = 3;
  const TemporaryFolder folder;
  for (std::uint32_t seed = 1; seed <= 2; ++seed) {
    DiskFileSystem files(DiskOptions{.direct = GetParam()});
    const fs::path path = folder.path() / std::to_string(seed);
    const std::string text = random_bytes(50'000'017, seed);
    files.create(path, text.size());
    const auto cuts = cut(text, kNumWriters, seed);
    std::vector<std::jthread> writers;
    for (std::size_t i = 0; i < kNumWriters; ++i) {
      writers.emplace_back([&, i] {
        const auto file = files.open(path);
        file->write(cuts[i]);
        file->sync();
      });
    }
    writers.clear();
    EXPECT_TRUE(text_of_file(path) == text) << "seed " << seed;
  }
}

/// Bytes whose place in memory suits the disk are not copied.
TEST_P(DiskWrites, OfAlignedMemoryAreAllThere) {
  const TemporaryFolder folder;
  DiskFileSystem files(DiskOptions{.direct = GetParam()});
  const std::string text = random_bytes(20'000'000, 3);
  constexpr std::size_t kAlignment = 65536;
  std::vector<std::byte> memory(text.size() + 2 * kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t shift = kAlignment - address % kAlignment;
  const auto bytes = std::span(memory).subspan(shift, text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), bytes.begin());
  const auto file = files.create(folder.path() / "file", text.size());
  file->write({{0, bytes.first(9'000'000)}, {9'000'000, bytes.subspan(9'000'000)}});
  EXPECT_TRUE(text_of_file(folder.path() / "file") == text);
}

INSTANTIATE_TEST_SUITE_P(Disk, DiskWrites, ::testing::Bool(),
                         [](const auto& given) { return given.param ? "Direct" : "Buffered"; });

// UndefinedBehaviorSanitizer looks at an object through a pipe, and takes a lack of descriptors for a bad object.
__attribute__((no_sanitize("vptr"))) void write_without_descriptors(OutputFile& file, const std::string& text) {
  file.write({{0, std::as_bytes(std::span(text))}});
}

TEST(DiskFileSystem, TellsWhyAFileIsNotWrittenDirectly) {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  DiskFileSystem files(DiskOptions{.tell = [&lines](const std::string& line) { lines.push_back(line); }});
  const std::string text = random_bytes(3'000'000, 4);
  for (const char* name : {"a", "b"}) {
    const auto file = files.create(folder.path() / name, text.size());
    {
      const testing::NoMoreDescriptors no_ring;
      write_without_descriptors(*file, text);
    }
    EXPECT_TRUE(text_of_file(folder.path() / name) == text);
  }
  ASSERT_EQ(lines.size(), 1U) << "once a reason";
  expect_parts(lines[0], {"/a is written through the page cache: "});
}

TEST(DiskFileSystem, ExchangesFolders) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(folder.path() / name);
    write_new_file(FileSystem::disk(), folder.path() / name / "file", name);
  }
  FileSystem::disk().exchange(folder.path() / "a", folder.path() / "b", folder.path() / "aside");
  EXPECT_EQ(text_of_file(folder.path() / "b" / "file"), "a");
}

TEST(DiskFileSystem, SaysWhatIsWrongAndWhatToDo) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::disk();
  expect_parts(message_of<StorageError>([&] { files.create(folder.path() / "vanished" / "file", 10); }),
               {"vanished/file", "No such file", "Somebody removed the folder"});
  fs::create_directory(folder.path() / "there");
  expect_parts(message_of<StorageError>([&] { files.make_folder(folder.path() / "there"); }), {"there", "exists"});
  expect_parts(message_of<StorageError>([&] { files.create(folder.path() / "huge", std::uint64_t{1} << 43); }),
               {"huge", "8796093022208 bytes are needed", "are free"});
  EXPECT_FALSE(files.exists(folder.path() / "huge"));
  EXPECT_EQ(files.read(folder.path() / "missing"), std::nullopt);
  expect_parts(message_of<StorageError>([&] { files.list(folder.path() / "missing"); }), {"missing", "No such file"});
}

TEST(DiskError, AdvisesForEachFault) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a" / "b";
  expect_parts(disk_error(path, "cannot be written", ENOSPC, 1000).what(), {"1000 bytes are needed and ", " are free"});
  expect_parts(disk_error(path, "cannot be made", EROFS).what(), {"Read-only", "Mount it for writing"});
  expect_parts(disk_error(path, "cannot be made", EACCES).what(), {"the right to write"});
  expect_parts(disk_error(path, "cannot be written", EIO).what(), {"The disk failed"});
}

}  // namespace
}  // namespace tessera::checkpoints
