#include "checkpoint/save/save_job.h"

#include <tessera/checkpoint/saved_step.h>

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "checkpoint/disk/disk_file_system.h"
#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kMiB = 1U << 20;

using Bytes = std::vector<std::byte>;

Bytes random_values(std::size_t count) {
  std::mt19937_64 random(count);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

SliceDescription described(const std::string& name, Slice slice) {
  return {"model", name, StoredDtype::kU8, std::move(slice)};
}

/// The bytes of each planned slice of each rank.
std::vector<std::vector<Bytes>> random_sources(const SavePlan& plan) {
  std::vector<std::vector<Bytes>> sources;
  for (const auto& of_rank : plan.of_rank) {
    sources.emplace_back();
    for (const PlannedWrite& planned : of_rank) sources.back().push_back(random_values(plan.bytes_of(planned)));
  }
  return sources;
}

/// What all ranks do, the last one first. Returns how many bytes they say that they have written.
std::uint64_t save(FileSystem& files, const std::filesystem::path& root, const std::shared_ptr<const SavePlan>& plan,
                   const std::vector<std::vector<Bytes>>& sources) {
  std::vector<DraftFile> draft_files;
  for (const PlannedFile& file : plan->files) draft_files.push_back({file.name, file.num_bytes, file.text});
  StepDraft first = StepDraft::create(files, root, 1, draft_files);
  const auto count = std::make_shared<ByteCount>();
  for (int rank = plan->manifest.num_ranks; rank-- > 0;) {
    const auto& own = sources[static_cast<std::size_t>(rank)];
    const std::vector<std::span<const std::byte>> bytes(own.begin(), own.end());
    const SaveOrder order{plan, 1, rank, {}, std::chrono::seconds(10), count};
    if (rank > 0) {
      StepDraft joined = StepDraft::join(files, root, 1);
      save_slices(joined, order, bytes);
    } else {
      save_slices(first, order, bytes);
    }
  }
  return count->done;
}

TEST(SaveSlices, SumsBlocksHoweverRunsAndBatchesCutThem) {
  constexpr std::int64_t kLong = 35 * kMiB + 777;  // several batches, and a block that is not full
  const std::vector<std::int64_t> shape{3000, 1300};
  const auto plan = std::make_shared<const SavePlan>(
      SavePlan::make({{described("box", Slice::whole(shape).narrow(1, {0, 1001})),
                       described("long", Slice::extent({kLong}, {0, 21 * kMiB + 5}))},
                      {described("box", Slice::whole(shape).narrow(1, {1001, 299})),
                       described("long", Slice::extent({kLong}, {21 * kMiB + 5, 14 * kMiB + 772}))}},
                     1U << 30));
  const auto sources = random_sources(*plan);
  const testing::TemporaryFolder folder;
  DiskFileSystem files;
  EXPECT_EQ(save(files, folder.path(), plan, sources), static_cast<std::uint64_t>(kLong) + 3000 * 1300);

  const SavedStep step(folder.path() / step_folder_name(1));
  EXPECT_EQ(step.verify(), std::vector<std::string>{});
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    for (std::size_t i = 0; i < sources[rank].size(); ++i) {
      const PlannedWrite& planned = plan->of_rank[rank][i];
      const ManifestTensor& tensor = step.manifest().tensors[planned.tensor];
      EXPECT_EQ(tensor.slices[planned.slice].checksums, block_checksums(sources[rank][i]))
          << tensor.name << " on rank " << rank;
    }
  }
}

/// The disk, with somebody who is called before long ranges are written.
class WatchedDisk : public DiskFileSystem {
 public:
  explicit WatchedDisk(std::function<void()> before_long_writes) : watch_(std::move(before_long_writes)) {}

  std::unique_ptr<OutputFile> create(const std::filesystem::path& path, std::uint64_t num_bytes) override {
    return std::make_unique<File>(DiskFileSystem::create(path, num_bytes), watch_);
  }

 private:
  class File : public OutputFile {
   public:
    File(std::unique_ptr<OutputFile> file, const std::function<void()>& watch)
        : file_(std::move(file)), watch_(watch) {}
    void write(std::vector<WriteRange> ranges) override {
      if (ranges.front().bytes.size() >= kMiB) watch_();
      file_->write(std::move(ranges));
    }
    void sync() override { file_->sync(); }

   private:
    std::unique_ptr<OutputFile> file_;
    const std::function<void()>& watch_;
  };

  std::function<void()> watch_;
};

// The end of a slice that changes when the disk has been given its beginning: its checksum tells when it was taken.
TEST(SaveSlices, SumsTheEndOfALargeSliceWhenItsBeginningIsWritten) {
  constexpr std::int64_t kSize = 40 * kMiB;
  const auto plan =
      std::make_shared<const SavePlan>(SavePlan::make({{described("w", Slice::whole({kSize}))}}, 1U << 30));
  auto sources = random_sources(*plan);
  int num_writes = 0;
  WatchedDisk files([&] {
    if (num_writes++ == 0) sources[0][0].back() ^= std::byte{1};
  });
  const testing::TemporaryFolder folder;
  save(files, folder.path(), plan, sources);
  EXPECT_GT(num_writes, 1);
  EXPECT_EQ(SavedStep(folder.path() / step_folder_name(1)).verify(), std::vector<std::string>{});
}

}  // namespace
}  // namespace tessera::checkpoints
