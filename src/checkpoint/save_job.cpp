#include "checkpoint/save_job.h"

#include <tessera/core/error.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "checkpoint/save_part.h"

namespace tessera::checkpoints {
namespace {

// So much is summed and written before the next: large enough for the disk, small enough to be in the cache still.
constexpr std::size_t kBatchBytes = 16U << 20;

/// Collects what goes into one file until it is worth a call.
class BatchedWrites {
 public:
  BatchedWrites(StepDraft& draft, ByteCount& count) : draft_(draft), count_(count) {}

  void add(const std::string& file, WriteRange range) {
    if (file != file_) flush();
    file_ = file;
    num_bytes_ += range.bytes.size();
    ranges_.push_back(range);
    if (num_bytes_ >= kBatchBytes) flush();
  }
  void flush() {
    if (!ranges_.empty()) draft_.write(file_, std::exchange(ranges_, {}));
    count_.done += std::exchange(num_bytes_, 0);
  }

 private:
  StepDraft& draft_;
  ByteCount& count_;
  std::string file_;
  std::vector<WriteRange> ranges_;
  std::size_t num_bytes_ = 0;
};

/// The bytes of a slice, in their order. They get their checksums as they are taken to be written: were all of a large
/// slice summed first, the disk would wait meanwhile, and the line that shows how far a save is would stand still.
class SummedBytes {
 public:
  SummedBytes(std::span<const std::byte> bytes, std::uint64_t block_bytes) : rest_(bytes), block_bytes_(block_bytes) {
    checksums_.reserve(num_blocks(bytes.size(), block_bytes));
  }

  std::span<const std::byte> take(std::size_t size) {
    if (size > num_summed_) sum(size - num_summed_);
    num_summed_ -= size;
    const std::span<const std::byte> taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  /// Of all blocks, when all bytes are taken.
  std::vector<std::uint64_t> checksums() && { return std::move(checksums_); }

 private:
  /// So many bytes more, and what is left of their last block.
  void sum(std::size_t size) {
    const std::span<const std::byte> bytes = rest_.subspan(num_summed_);
    const std::size_t in_blocks = std::min<std::size_t>(num_blocks(size, block_bytes_) * block_bytes_, bytes.size());
    std::ranges::copy(block_checksums(bytes.first(in_blocks), block_bytes_), std::back_inserter(checksums_));
    num_summed_ += in_blocks;
  }

  std::span<const std::byte> rest_;
  std::uint64_t block_bytes_;
  std::size_t num_summed_ = 0;  // of the rest
  std::vector<std::uint64_t> checksums_;
};

/// Where the bytes of a planned slice go: one stretch of its file, or several for a box.
void add_ranges(const SavePlan& plan, const PlannedWrite& planned, SummedBytes& bytes, BatchedWrites& writes) {
  const ManifestTensor& tensor = plan.manifest.tensors[planned.tensor];
  const std::string& file = plan.files[tensor.file].name;
  const auto element_bytes = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
  const SliceRuns runs(tensor.slices[planned.slice].slice);
  for (std::int64_t i = 0; i < runs.num_runs(); ++i) {
    const SliceRuns::Run run = runs.at(i);
    const std::size_t run_bytes = static_cast<std::uint64_t>(run.length) * element_bytes;
    const std::uint64_t offset =
        plan.tensor_start[planned.tensor] + static_cast<std::uint64_t>(run.first) * element_bytes;
    for (std::size_t begin = 0; begin < run_bytes; begin += kBatchBytes) {
      writes.add(file, {offset + begin, bytes.take(std::min(kBatchBytes, run_bytes - begin))});
    }
  }
}

SavePart write_slices(StepDraft& draft, const SaveOrder& order,
                      const std::vector<std::span<const std::byte>>& sources) {
  const SavePlan& plan = *order.plan;
  const auto& planned = plan.of_rank[static_cast<std::size_t>(order.rank)];
  SavePart part;
  BatchedWrites writes(draft, *order.count);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    SummedBytes bytes(sources[i], plan.manifest.block_bytes);
    add_ranges(plan, planned[i], bytes, writes);
    part.checksums.push_back(std::move(bytes).checksums());
  }
  writes.flush();
  draft.sync();
  return part;
}

/// The manifest with the checksums of all ranks.
Manifest completed(const SaveOrder& order, const std::vector<std::string>& parts) {
  Manifest manifest = order.plan->manifest;
  manifest.step = order.step;
  manifest.values = order.values;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::string origin = "the part of rank " + std::to_string(rank);
    SavePart part = SavePart::parse(parts[rank], origin);
    const auto& planned = order.plan->of_rank[rank];
    if (part.checksums.size() != planned.size()) {
      throw StorageError(origin + " tells of " + std::to_string(part.checksums.size()) + " slices, expected " +
                         std::to_string(planned.size()));
    }
    for (std::size_t i = 0; i < planned.size(); ++i) {
      manifest.tensors[planned[i].tensor].slices[planned[i].slice].checksums = std::move(part.checksums[i]);
    }
  }
  return manifest;
}

}  // namespace

std::string save_slices(StepDraft& draft, const SaveOrder& order,
                        const std::vector<std::span<const std::byte>>& sources) {
  try {
    draft.publish_part(order.rank, write_slices(draft, order, sources).to_text());
  } catch (const StorageError& error) {
    draft.publish_failure(order.rank, error.what());  // rank 0 would wait in vain
    throw;
  }
  if (order.rank != 0) return {};
  return draft.commit(completed(order, draft.await_parts(order.plan->manifest.num_ranks, order.patience)).to_json());
}

}  // namespace tessera::checkpoints
