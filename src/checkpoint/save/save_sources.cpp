#include "checkpoint/save/save_sources.h"

#include <tessera/disk/streaming_copy.h>
#include <tessera/shard/stream_order.h>

#include <ATen/ATen.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kHugePage = 2U << 20;

}  // namespace

std::shared_ptr<std::byte> Staging::take(std::size_t num_bytes, bool pinned) {
  std::unique_lock lock(mutex_);
  const auto free_one = [&] {
    return std::find_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return !copy.taken; });
  };
  given_back_.wait(lock, [&] { return free_one() != copies_.end(); });
  Copy& copy = *free_one();
  if (copy.capacity < num_bytes || copy.pinned.defined() != pinned) copy.allocate(num_bytes, pinned);
  copy.taken = true;
  auto* const memory = pinned ? static_cast<std::byte*>(copy.pinned.data_ptr()) : copy.memory.get();
  return {memory, [this, &copy](std::byte*) { give_back(copy); }};
}

void Staging::Copy::allocate(std::size_t num_bytes, bool is_pinned) {
  memory.reset();
  pinned = at::Tensor();
  capacity = 0;
  const std::size_t rounded = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (is_pinned) {
    pinned = at::empty({static_cast<std::int64_t>(rounded)}, at::TensorOptions(at::kByte).pinned_memory(true));
  } else {
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
    if (!memory) throw std::bad_alloc();
    // Training pauses while the first copy is made, which takes a fault for each page: huge pages make these few.
    madvise(memory.get(), rounded, MADV_HUGEPAGE);
  }
  capacity = rounded;
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

bool is_on_host(const at::Tensor& part) { return part.is_cpu(); }

/// The thread that writes the bytes waits for it and frees it: see Note [Threads that ask devices].
std::shared_ptr<c10::Event> event_of(const at::Device& device) {
  return {new c10::Event(device.type()), [device](c10::Event* event) {
            const c10::DeviceGuard there(device);
            delete event;
          }};
}

/// Copies from devices to pinned memory, each on a stream of its own.
class DeviceCopies {
 public:
  void copy(std::byte* place, const at::Tensor& part) {
    const c10::Stream side = stream_of(part.device());
    // Its memory may belong to another stream than the current one, which end() lets wait.
    part.record_stream(side);
    const c10::StreamGuard on_side(side);
    at::from_blob(place, part.sizes(), part.options().device(at::kCPU).requires_grad(false))
        .copy_(part, /*non_blocking=*/true);
  }

  /// What is launched from now on waits for the copies: it may write to what is copied.
  std::vector<std::shared_ptr<c10::Event>> end() {
    std::vector<std::shared_ptr<c10::Event>> ends;
    for (const auto& [device, side] : sides_) {
      auto& copied = ends.emplace_back(event_of(device));
      copied->record(side);
      copied->block(*current_stream(device));
    }
    return ends;
  }

 private:
  /// It is behind all that was launched before.
  c10::Stream stream_of(const at::Device& device) {
    const auto known = std::ranges::find(sides_, device, [](const auto& one) { return one.first; });
    if (known != sides_.end()) return known->second;
    const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    order_streams(*current_stream(device), side);
    sides_.emplace_back(device, side);
    return side;
  }

  std::vector<std::pair<at::Device, c10::Stream>> sides_;
};

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
  const bool on_host = std::ranges::all_of(parts, is_on_host);
  sources.copy = staging.take(layout.num_bytes, !on_host);
  DeviceCopies from_devices;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::byte* const place = sources.copy.get() + layout.places[i];
    if (is_on_host(parts[i])) disk::streaming_copy(bytes_of(parts[i]), place);
    sources.bytes.emplace_back(place, parts[i].nbytes());
  }
  // Then the host does not touch the memory until wait().
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!is_on_host(parts[i])) from_devices.copy(sources.copy.get() + layout.places[i], parts[i]);
  }
  sources.copied_from = from_devices.end();
  return sources;
}

void SaveSources::wait() const {
  for (const auto& copied : copied_from) {
    const c10::DeviceGuard there(copied->device());
    copied->synchronize();
  }
}

}  // namespace tessera::checkpoints
