#include "checkpoint/save_job.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <utility>

#include "checkpoint/save_part.h"
#include "checkpoint/slice_runs.h"

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

/// Where the bytes of a planned slice go: one stretch of its file, or several for a box.
void add_ranges(const SavePlan& plan, const PlannedSlice& planned, std::span<const std::byte> bytes,
                BatchedWrites& writes) {
  const ManifestTensor& tensor = plan.manifest.tensors[planned.tensor];
  const SlicePlace& place = tensor.slices[planned.slice].place;
  const std::string& file = plan.files[tensor.file].name;
  const auto element_bytes = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
  const SliceRuns runs(place.view, {place.starts, place.sizes}, tensor.name);
  const std::size_t run_bytes = static_cast<std::uint64_t>(runs.run_length()) * element_bytes;
  std::size_t done = 0;
  runs.for_each([&](std::int64_t first) {
    const std::uint64_t offset = plan.tensor_start[planned.tensor] + static_cast<std::uint64_t>(first) * element_bytes;
    // In pieces, so that a large slice is written while its checksums are still being taken.
    for (std::size_t begin = 0; begin < run_bytes; begin += kBatchBytes) {
      const std::size_t size = std::min(kBatchBytes, run_bytes - begin);
      writes.add(file, {offset + begin, bytes.subspan(done + begin, size)});
    }
    done += run_bytes;
  });
}

SavePart write_slices(StepDraft& draft, const SaveOrder& order,
                      const std::vector<std::span<const std::byte>>& sources) {
  const SavePlan& plan = *order.plan;
  const auto& planned = plan.of_rank[static_cast<std::size_t>(order.rank)];
  SavePart part;
  BatchedWrites writes(draft, *order.count);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    part.checksums.push_back(block_checksums(sources[i], plan.manifest.block_bytes));
    add_ranges(plan, planned[i], sources[i], writes);
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
