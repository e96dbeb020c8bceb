#include "checkpoint/save/save_sources.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <new>
#include <sys/mman.h>

#include "checkpoint/disk/streaming_copy.h"

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kHugePage = 2U << 20;

}  // namespace

std::shared_ptr<std::byte> Staging::take(std::size_t num_bytes) {
  std::unique_lock lock(mutex_);
  const auto free_one = [&] {
    return std::find_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return !copy.taken; });
  };
  given_back_.wait(lock, [&] { return free_one() != copies_.end(); });
  Copy& copy = *free_one();
  if (copy.capacity < num_bytes) {
    copy.memory.reset();
    copy.capacity = 0;
    const std::size_t capacity = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, capacity));
    if (memory == nullptr) throw std::bad_alloc();
    // Training pauses while the first copy is made, which takes a fault for each page: huge pages make these few.
    madvise(memory, capacity, MADV_HUGEPAGE);
    copy.memory.reset(memory);
    copy.capacity = capacity;
  }
  copy.taken = true;
  return {copy.memory.get(), [this, &copy](std::byte*) { give_back(copy); }};
}

void Staging::give_back(Copy& copy) {
  {
    const std::lock_guard lock(mutex_);
    copy.taken = false;
  }
  given_back_.notify_one();
}

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& values) {
  return {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()};
}

void copy_to(std::byte* place, const at::Tensor& part) {
  if (part.is_cpu()) {
    streaming_copy(bytes_of(part), place);
  } else {
    at::from_blob(place, part.sizes(), part.options().device(at::kCPU).requires_grad(false)).copy_(part);
  }
}

}  // namespace

std::vector<at::Tensor> written_parts(const SavePlan& plan, int rank, const RankState& state) {
  std::vector<at::Tensor> parts;
  for (const PlannedWrite& planned : plan.of_rank[static_cast<std::size_t>(rank)]) {
    const Slice& written = plan.manifest.tensors[planned.tensor].slices[planned.slice].slice;
    parts.push_back(
        state.slices[planned.held].values.detach().view({-1}).narrow(0, planned.first, written.num_elements()));
  }
  return parts;
}

SaveSources SaveSources::of(const std::vector<at::Tensor>& parts) {
  SaveSources sources;
  for (const at::Tensor& part : parts) sources.bytes.push_back(bytes_of(part));
  return sources;
}

SaveSources SaveSources::copied(const std::vector<at::Tensor>& parts, const CopyLayout& layout, Staging& staging) {
  SaveSources sources;
  sources.copy = staging.take(layout.num_bytes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::byte* const place = sources.copy.get() + layout.places[i];
    copy_to(place, parts[i]);
    sources.bytes.emplace_back(place, parts[i].nbytes());
  }
  return sources;
}

}  // namespace tessera::checkpoints
