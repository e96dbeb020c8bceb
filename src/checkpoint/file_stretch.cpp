#include "checkpoint/file_stretch.h"

#include <algorithm>

namespace tessera::checkpoints {
namespace {

// Less costs more than it saves; for more the system would hold pages that are not needed yet.
constexpr std::size_t kLeastBytes = std::size_t{1} << 18;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 22;

}  // namespace

std::span<const std::byte> FileStretch::block(std::uint64_t offset, std::size_t num_bytes, std::uint64_t end) {
  if (num_bytes < kLeastBytes) return {};
  if (offset < begin_ || offset + num_bytes > end_) {
    view_.reset();  // its pages go before others come
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

FileStretch::Way FileStretch::choose() {
  view_ = file_.view(begin_, static_cast<std::size_t>(end_ - begin_));
  if (view_) return Way::kCached;
  // Where slices meet their pages were buffered by those who wrote them: these the cache may hold.
  return direct_ != nullptr && file_.is_mostly_on_disk(begin_, end_ - begin_) ? Way::kPastCache : Way::kNeither;
}

}  // namespace tessera::checkpoints
