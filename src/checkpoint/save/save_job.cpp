#include "checkpoint/save/save_job.h"

#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace tessera::checkpoints {
namespace {

/// Removes the first line from `text` and returns it without its line feed. Throws when there is no line feed.
std::string_view take_line(std::string_view& text, const std::string& origin) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) throw StorageError(origin + " ends within a line");
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

std::vector<std::uint64_t> parse_checksums(std::string_view line, const std::string& origin) {
  std::vector<std::uint64_t> checksums;
  while (!line.empty()) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value, 16);
    if (error != std::errc()) throw StorageError(origin + " holds a checksum that is no number");
    checksums.push_back(value);
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  return checksums;
}

}  // namespace

std::string SavePart::to_text() const {
  std::string text;
  for (const auto& slice : checksums) {
    for (const std::uint64_t checksum : slice) {
      text += checksum_text(checksum) + ' ';
    }
    text += '\n';
  }
  return text;
}

SavePart SavePart::parse(std::string_view text, const std::string& origin) {
  SavePart part;
  while (!text.empty()) part.checksums.push_back(parse_checksums(take_line(text, origin), origin));
  return part;
}

namespace {

// The bytes that are summed and then written at a time: enough for the disk, and few enough to be in the cache still.
constexpr std::size_t kBatchBytes = 16U << 20;

/// Collects ranges of one file until they are worth a call.
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

/// The bytes of a slice, in their order. They are summed as they are taken to be written: if all of a large slice were
/// summed first, the disk would be idle meanwhile, and the progress line would stand still.
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
  /// The checksums of all blocks, once all bytes are taken.
  std::vector<std::uint64_t> checksums() && { return std::move(checksums_); }

 private:
  /// Sums `size` more bytes, and the rest of their last block.
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

/// Where the bytes of a planned slice go: one extent of its file, or several for a box.
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
    draft.publish_failure(order.rank, error.what());  // so that rank 0 does not wait in vain
    throw;
  }
  if (order.rank != 0) return {};
  return draft.commit(completed(order, draft.await_parts(order.plan->manifest.num_ranks, order.timeout)).to_json());
}

}  // namespace tessera::checkpoints
