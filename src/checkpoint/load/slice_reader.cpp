#include "checkpoint/load/slice_reader.h"

#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>
#include <tessera/disk/streaming_copy.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "checkpoint/format/safetensors_header.h"

namespace tessera::checkpoints {
namespace {

// Less costs more than it saves; more would keep pages mapped that are not needed yet.
constexpr std::size_t kLeastBytes = std::size_t{1} << 18;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 22;

}  // namespace

std::span<const std::byte> FileExtent::block(std::uint64_t offset, std::size_t num_bytes, std::uint64_t end) {
  if (num_bytes < kLeastBytes) return {};
  if (offset < begin_ || offset + num_bytes > end_) {
    view_.reset();  // releases its pages before others are mapped
    begin_ = offset;
    end_ = std::min(end, offset + std::max<std::uint64_t>(kMostBytes, num_bytes));
    way_ = choose();
  }
  switch (way_) {
    case Way::kCached:
      return view_->bytes(offset, num_bytes);
    case Way::kPastCache:
      return direct_->read(file_, offset, num_bytes, end);
    case Way::kNeither:
      return {};
  }
  return {};
}

FileExtent::Way FileExtent::choose() {
  view_ = file_.view(begin_, static_cast<std::size_t>(end_ - begin_));
  if (view_) return Way::kCached;
  // A page at the border of two slices was written through the page cache, so it may still be there.
  return direct_ != nullptr && file_.is_mostly_on_disk(begin_, end_ - begin_) ? Way::kPastCache : Way::kNeither;
}

namespace {

constexpr std::uint64_t kNoBlock = std::numeric_limits<std::uint64_t>::max();
// Runs with more than this between them are read one by one.
constexpr std::uint64_t kMostSkipped = std::uint64_t{1} << 15;
// So are runs that are longer than this.
constexpr std::uint64_t kLongRun = std::uint64_t{1} << 16;

/// The first run, from `from` on, that ends behind `element`.
std::int64_t run_behind(const SliceRuns& runs, std::int64_t element, std::int64_t from) {
  const auto ends_before = [&](std::int64_t run) { return runs.at(run).last_end() <= element; };
  if (from >= runs.num_runs() || !ends_before(from)) return from;
  std::int64_t low = from + 1;
  std::int64_t high = runs.num_runs();
  if (low < high && !ends_before(low)) return low;  // the usual case
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (ends_before(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

SliceReader::SliceReader(const FileReader& file, std::uint64_t start, const ManifestTensor& tensor,
                         const ManifestSlice& slice, ReadBuffers& buffers)
    : file_(file),
      start_(start),
      tensor_(tensor),
      slice_(slice),
      buffers_(buffers),
      runs_(slice.slice),
      element_bytes_(static_cast<std::uint64_t>(dtype_bytes(tensor.dtype))),
      buffered_block_(kNoBlock),
      extent_(file, buffers.direct_) {}

std::uint64_t SliceReader::num_bytes() const {
  return static_cast<std::uint64_t>(runs_.num_elements()) * element_bytes_;
}

std::uint64_t SliceReader::block_end(std::uint64_t block) const {
  return std::min(block_begin(block) + buffers_.block_bytes_, num_bytes());
}

SliceReader::FilePlace SliceReader::place_of(std::uint64_t in_slice) const {
  const auto run = runs_.at(runs_.run_of(static_cast<std::int64_t>(in_slice / element_bytes_)));
  const std::uint64_t in_run = in_slice - static_cast<std::uint64_t>(run.begin) * element_bytes_;
  return {start_ + static_cast<std::uint64_t>(run.first) * element_bytes_ + in_run,
          static_cast<std::uint64_t>(run.length) * element_bytes_ - in_run};
}

void SliceReader::read(const SliceRuns& wanted, std::span<std::byte> into) {
  if (wanted.num_runs() == 0 || runs_.num_runs() == 0) return;
  const auto bytes = [this](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * element_bytes_; };
  std::int64_t mine = 0;
  std::int64_t theirs = run_behind(wanted, runs_.at(0).first, 0);
  while (theirs < wanted.num_runs()) {
    const SliceRuns::Run asked = wanted.at(theirs);
    mine = run_behind(runs_, asked.first, mine);
    if (mine == runs_.num_runs()) return;
    const SliceRuns::Run held = runs_.at(mine);
    const std::int64_t begin = std::max(held.first, asked.first);
    const std::int64_t end = std::min(held.last_end(), asked.last_end());
    if (begin < end) {
      read_piece({bytes(held.begin + begin - held.first), bytes(asked.begin + begin - asked.first), bytes(end - begin)},
                 into);
    }
    if (held.last_end() < asked.last_end()) {
      ++mine;
      if (mine == runs_.num_runs()) return;
      theirs = run_behind(wanted, runs_.at(mine).first, theirs);
    } else {
      ++theirs;
    }
  }
}

void SliceReader::read_piece(Piece piece, std::span<std::byte> into) {
  const std::uint64_t last = (piece.in_slice + piece.num_bytes - 1) / buffers_.block_bytes_;
  while (piece.num_bytes > 0) {
    const std::uint64_t block = piece.in_slice / buffers_.block_bytes_;
    const std::uint64_t skipped = piece.in_slice - block_begin(block);
    const std::uint64_t num_bytes = std::min(piece.num_bytes, block_end(block) - piece.in_slice);
    const auto target = into.subspan(piece.in_destination, num_bytes);
    if (num_bytes == block_end(block) - block_begin(block)) {
      if (!load(block, target, last)) throw StorageError(fault(block, block));
    } else {
      if (buffered_block_ != block) {
        buffered_block_ = kNoBlock;
        const std::uint64_t length = block_end(block) - block_begin(block);
        if (!load(block, buffers_.block_of(length), last)) {
          throw StorageError(fault(block, block));
        }
        buffered_block_ = block;
      }
      std::memcpy(target.data(), buffers_.block_.data() + skipped, num_bytes);
    }
    if (buffers_.count_ != nullptr) buffers_.count_->done += num_bytes;
    piece = {piece.in_slice + num_bytes, piece.in_destination + num_bytes, piece.num_bytes - num_bytes};
  }
}

bool SliceReader::load(std::uint64_t block, std::span<std::byte> target, std::uint64_t last) {
  const std::span<const std::byte> bytes = uncopied(block, last);
  if (!bytes.empty()) return disk::streaming_copy_and_sum(bytes, target.data()) == slice_.checksums[block];
  gather(block_begin(block), target);
  return checksum_of(target) == slice_.checksums[block];
}

bool SliceReader::is_intact(std::uint64_t block) {
  const std::span<const std::byte> bytes = uncopied(block, num_blocks(num_bytes(), buffers_.block_bytes_) - 1);
  if (!bytes.empty()) return checksum_of(bytes) == slice_.checksums[block];
  return load(block, buffers_.block_of(block_end(block) - block_begin(block)), block);
}

std::span<const std::byte> SliceReader::uncopied(std::uint64_t block, std::uint64_t last) {
  const std::uint64_t begin = block_begin(block);
  const std::uint64_t length = block_end(block) - begin;
  const FilePlace place = place_of(begin);
  if (length > place.left_of_run) return {};
  return extent_.block(place.offset, static_cast<std::size_t>(length),
                       place.offset + std::min(block_end(last) - begin, place.left_of_run));
}

void SliceReader::gather(std::uint64_t in_slice, std::span<std::byte> target) {
  const std::uint64_t end = in_slice + target.size();
  while (!target.empty()) {
    const auto [offset, left_of_run] = place_of(in_slice);
    const std::uint64_t length = std::min<std::uint64_t>(left_of_run, target.size());
    if (length > kLongRun || length == target.size()) {
      file_.read(offset, target.first(length));
    } else {
      const std::uint64_t skipped = place_of(in_slice + length).offset - offset - length;
      const std::uint64_t useful = skipped > kMostSkipped ? length : place_of(end - 1).offset + 1 - offset;
      std::memcpy(target.data(), window(offset, length, useful).data(), length);
    }
    target = target.subspan(length);
    in_slice += length;
  }
}

std::span<const std::byte> SliceReader::window(std::uint64_t offset, std::uint64_t num_bytes,
                                               std::uint64_t num_useful) {
  if (offset < window_begin_ || offset + num_bytes > window_end_) {
    buffers_.window_.resize(ReadBuffers::kWindowBytes);
    const std::uint64_t length = std::min(num_useful, ReadBuffers::kWindowBytes);
    window_begin_ = window_end_ = 0;
    file_.read(offset, std::span(buffers_.window_).first(length));
    window_begin_ = offset;
    window_end_ = offset + length;
  }
  return std::span(buffers_.window_).subspan(offset - window_begin_, num_bytes);
}

void SliceReader::verify(std::vector<std::string>& faults, const std::function<void(std::uint64_t)>& progress) {
  const std::uint64_t count = num_blocks(num_bytes(), buffers_.block_bytes_);
  std::uint64_t first_damaged = kNoBlock;
  for (std::uint64_t block = 0; block <= count; ++block) {
    bool damaged = false;
    if (block < count) {
      const std::uint64_t length = block_end(block) - block_begin(block);
      try {
        damaged = !is_intact(block);
      } catch (const StorageError& error) {
        faults.emplace_back(error.what());
      }
      progress(length);
    }
    if (damaged && first_damaged == kNoBlock) first_damaged = block;
    if (!damaged && first_damaged != kNoBlock) {
      faults.push_back(fault(first_damaged, block - 1));
      first_damaged = kNoBlock;
    }
  }
}

std::string SliceReader::fault(std::uint64_t first_block, std::uint64_t last_block) const {
  const std::uint64_t begin = place_of(block_begin(first_block)).offset;
  const std::uint64_t end = place_of(block_end(last_block) - 1).offset + 1;
  const bool scattered = end - begin > block_end(last_block) - block_begin(first_block);
  return file_.path().string() + ": tensor " + shown(tensor_.name) + " of " + shown(tensor_.group) +
         ", slice of rank " + std::to_string(slice_.rank) + ", " + slice_.slice.text() + ": bytes " +
         std::to_string(begin) + " to " + std::to_string(end) + " of the file" +
         (scattered ? ", as far as they are the slice's," : "") +
         " are damaged: they have another checksum than when they were saved";
}

}  // namespace tessera::checkpoints
