#include "offload/store/file_store.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "support/error_message.h"
#include "support/file_size_limit.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"
#include "support/unnamed_files.h"

namespace tessera::offload {
namespace {

using tessera::testing::expect_parts;
using tessera::testing::FileSizeLimit;
using tessera::testing::message_of;
using tessera::testing::TemporaryFolder;
using tessera::testing::unnamed_files;

constexpr std::size_t kChunk = FileStore::kChunkBytes;

/// Memory as transfers need it.
class Memory {
 public:
  Memory(const FileStore& store, std::size_t num_bytes)
      : bytes_(static_cast<std::byte*>(
                   std::aligned_alloc(store.alignment(), std::max(store.padded(num_bytes), store.alignment()))),
               std::free),
        num_bytes_(num_bytes) {}

  std::span<std::byte> span() const { return {bytes_.get(), num_bytes_}; }
  std::shared_ptr<void> keeper() const { return bytes_; }
  void fill(unsigned seed) const {
    std::uint64_t state = seed + 1;
    for (std::byte& byte : span()) byte = static_cast<std::byte>((state = state * 6364136223846793005U + 1) >> 56);
  }
  bool equals(const Memory& other) const { return std::ranges::equal(span(), other.span()); }

 private:
  std::shared_ptr<std::byte> bytes_;
  std::size_t num_bytes_;
};

void write(FileStore& store, const FileBlock& block, const Memory& memory) {
  store.write(block, 0, memory.span(), memory.keeper()).wait();
}

Memory read(FileStore& store, const FileBlock& block) {
  Memory memory(store, block.num_bytes());
  store.read(block, 0, memory.span(), memory.keeper()).wait();
  return memory;
}

class FileStores : public ::testing::TestWithParam<int> {
 protected:
  std::vector<std::filesystem::path> folders() const {
    std::vector<std::filesystem::path> all;
    for (int i = 0; i < GetParam(); ++i) all.push_back(folder_.path() / ("disk" + std::to_string(i)));
    return all;
  }
  TemporaryFolder folder_;
};

TEST_P(FileStores, GiveBackWhatWasWritten) {
  FileStore store(folders());
  unsigned seed = 0;
  std::map<unsigned, FileBlock> blocks;
  for (const std::size_t num_bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kChunk - 1, kChunk, kChunk + 1,
                                      5 * kChunk + 12345, 11 * kChunk}) {
    Memory memory(store, num_bytes);
    memory.fill(++seed);
    blocks[seed] = store.make_block(num_bytes, "block " + std::to_string(seed));
    write(store, blocks[seed], memory);
  }
  for (const auto& [written, block] : blocks) {
    Memory expected(store, block.num_bytes());
    expected.fill(written);
    EXPECT_TRUE(read(store, block).equals(expected)) << block.num_bytes();
  }
}

TEST_P(FileStores, ReadZerosWhereNothingWasWritten) {
  FileStore store(folders());
  const FileBlock block = store.make_block(3 * kChunk, "states");
  Memory middle(store, kChunk);
  middle.fill(1);
  store.write(block, kChunk, middle.span(), middle.keeper()).wait();
  const Memory found = read(store, block);
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  EXPECT_TRUE(std::ranges::all_of(found.span().first(kChunk), is_zero));
  EXPECT_TRUE(std::ranges::equal(found.span().subspan(kChunk, kChunk), middle.span()));
  EXPECT_TRUE(std::ranges::all_of(found.span().subspan(2 * kChunk), is_zero));
  EXPECT_EQ(store.traffic().bytes_read, kChunk) << "zeros are not read from a disk";
}

TEST_P(FileStores, KeepTheOrderOfTransfersOfTheSameBytes) {
  FileStore store(folders());
  const FileBlock block = store.make_block(6 * kChunk, "parameters");
  std::vector<Memory> written;
  for (unsigned round = 0; round < 8; ++round) {
    Memory& memory = written.emplace_back(store, block.num_bytes());
    memory.fill(round);
    store.write(block, 0, memory.span(), memory.keeper());
    Memory found(store, block.num_bytes());
    const Transfer transfer = store.read(block, 0, found.span(), found.keeper());
    transfer.wait();
    EXPECT_TRUE(found.equals(memory)) << round;
  }
}

TEST_P(FileStores, ReuseTheRoomOfBlocksThatAreGone) {
  FileStore store(folders());
  for (int i = 0; i < 100; ++i) {
    const FileBlock block = store.make_block(4 * kChunk, "block");
    Memory memory(store, block.num_bytes());
    memory.fill(static_cast<unsigned>(i));
    store.write(block, 0, memory.span(), memory.keeper());  // which keeps the block until it is there
  }
  std::uint64_t num_bytes = 0;
  for (int i = 0; i < GetParam(); ++i) {
    for (const int file : unnamed_files(folders()[static_cast<std::size_t>(i)])) {
      num_bytes += static_cast<std::uint64_t>(lseek(file, 0, SEEK_END));
    }
  }
  EXPECT_GT(num_bytes, 0U);
  EXPECT_LT(num_bytes, 400 * kChunk) << "so many were written";
}

TEST_P(FileStores, LeaveNothingInTheirFolders) {
  FileStore store(folders());
  const FileBlock block = store.make_block(kChunk, "block");
  write(store, block, Memory(store, kChunk));
  for (const auto& folder : folders()) EXPECT_TRUE(std::filesystem::is_empty(folder)) << folder;
}

TEST_P(FileStores, ServeThreads) {
  FileStore store(folders());
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      for (unsigned i = 0; i < 20; ++i) {
        const FileBlock block = store.make_block(1 + random() % (3 * kChunk), "block");
        Memory memory(store, block.num_bytes());
        memory.fill(thread * 100 + i);
        store.write(block, 0, memory.span(), memory.keeper());
        EXPECT_TRUE(read(store, block).equals(memory));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(OfDisks, FileStores, ::testing::Values(1, 3));

TEST(FileStore, RefusesBytesThatChangedOnTheDisk) {
  const TemporaryFolder folder;
  FileStore store({folder.path()});
  const FileBlock block = store.make_block(2 * kChunk + 100, "the optimizer state of blocks.3");
  Memory memory(store, block.num_bytes());
  memory.fill(1);
  write(store, block, memory);
  const auto files = unnamed_files(folder.path());
  ASSERT_EQ(files.size(), 1U);
  tessera::testing::flip_a_bit("/proc/self/fd/" + std::to_string(files.front()), kChunk + 17);
  expect_parts(message_of<StorageError>([&] { read(store, block); }),
               {folder.path().string(), "the optimizer state of blocks.3", "bytes " + std::to_string(kChunk),
                "what was read is not what was written"});
  EXPECT_EQ(store.traffic().num_repeated, 2U) << "it was read again, twice";
  write(store, block, memory);
  EXPECT_TRUE(read(store, block).equals(memory)) << "what is written anew is good";
}

TEST(FileStore, SaysWhichBytesTheDiskDoesNotGive) {
  const TemporaryFolder folder;
  FileStore store({folder.path()});
  const FileBlock block = store.make_block(4 * kChunk, "the parameters of blocks.3");
  Memory memory(store, block.num_bytes());
  memory.fill(1);
  write(store, block, memory);
  ASSERT_EQ(ftruncate(unnamed_files(folder.path()).front(), static_cast<off_t>(kChunk)), 0);
  expect_parts(message_of<StorageError>([&] { read(store, block); }),
               {folder.path().string(), "cannot be read", "the parameters of blocks.3", "Input/output error"});
}

TEST(FileStore, SaysWhenADiskHasNoRoom) {
  const TemporaryFolder folder;
  FileStore store({folder.path()});
  const FileSizeLimit limit(8 * kChunk);
  const FileBlock fits = store.make_block(5 * kChunk, "fits");
  expect_parts(message_of<StorageError>([&] { static_cast<void>(store.make_block(5 * kChunk, "does not")); }),
               {folder.path().string(), "cannot hold what is offloaded", "File too large"});
  Memory memory(store, fits.num_bytes());
  memory.fill(1);
  write(store, fits, memory);
  EXPECT_TRUE(read(store, fits).equals(memory)) << "what has its room is not harmed";
}

TEST(FileStore, RefusesAWriteThatFailedUntilItIsMadeAgain) {
  const TemporaryFolder folder;
  FileStore store({folder.path()});
  const FileBlock block = store.make_block(2 * kChunk, "the parameters of blocks.3");
  Memory old(store, block.num_bytes());
  old.fill(1);
  write(store, block, old);
  Memory memory(store, block.num_bytes());
  memory.fill(2);
  ASSERT_EQ(ftruncate(unnamed_files(folder.path()).front(), 0), 0);
  {
    const FileSizeLimit limit(kChunk);
    const Transfer transfer = store.write(block, 0, memory.span(), memory.keeper());
    expect_parts(message_of<StorageError>([&] { transfer.wait(); }), {"cannot be written", "File too large"});
  }
  EXPECT_THROW(read(store, block), StorageError) << "neither the old bytes nor a mixture";
  write(store, block, memory);
  EXPECT_TRUE(read(store, block).equals(memory));
}

TEST(FileStore, NamesAFolderThatCannotBeUsed) {
  expect_parts(message_of<StorageError>([] { const FileStore store({"/proc/nowhere"}); }), {"/proc/nowhere"});
  expect_parts(message_of<StorageError>([] { const FileStore store({"/proc"}); }),
               {"/proc", "cannot hold a file for what is offloaded"});
  expect_parts(message_of<ConfigError>([] { const FileStore store({}); }),
               {"no folder is named for what lies in files"});
}

TEST(FileStore, FailsWhatHasNotBegunWhenItIsClosed) {
  const TemporaryFolder folder;
  Transfer last;
  FileBlock block;
  {
    FileStore store({folder.path()});
    block = store.make_block(64 * kChunk, "block");
    Memory memory(store, block.num_bytes());
    last = store.write(block, 0, memory.span(), memory.keeper());
  }
  EXPECT_TRUE(last.is_done());
  try {
    last.wait();  // all of it may have been written
  } catch (const StorageError& error) {
    expect_parts(error.what(), {"was closed before its bytes were on their way"});
  }
}

}  // namespace
}  // namespace tessera::offload
