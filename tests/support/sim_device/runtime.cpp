#include "support/sim_device/runtime.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "support/sim_device/host_threads.h"

namespace tessera::testing::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr std::size_t kStreamsOfDevice = 32;

thread_local int t_device = 0;
thread_local std::map<int, c10::StreamId> t_streams;

std::size_t charged_for(std::size_t num_bytes) { return (num_bytes + 511) / 512 * 512; }

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

/// SplitMix64: the same on every machine.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

microseconds delay_of(std::size_t stream, std::uint64_t tick) {
  const auto longest = static_cast<std::uint64_t>(settings().longest_delay.count());
  if (longest == 0) return microseconds(0);
  const std::uint64_t seed = mixed(settings().delay_seed) ^ stream;
  // Whole streams are slow or fast, and their launches differ too.
  const std::uint64_t most = longest * (mixed(seed) % 4) / 3;
  return microseconds(mixed(mixed(seed) ^ tick) % (most + 1));
}

}  // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

int current_device() { return t_device; }
void set_current_device(int device) { t_device = device; }

c10::Stream current_stream(int device) {
  if (device < 0) device = t_device;
  const auto found = t_streams.find(device);
  return c10::Stream(c10::Stream::UNSAFE, sim::device(device), found == t_streams.end() ? 0 : found->second);
}

void set_current_stream(const c10::Stream& stream) { t_streams[stream.device_index()] = stream.id(); }

Runtime& Runtime::get() {
  static auto* const instance = [] {
    auto* const made = new Runtime;
    // LibTorch's own objects are still there then, and kernels may need them.
    std::atexit([] {
      const std::lock_guard lock(get().mutex_);
      get().queues_.clear();
    });
    return made;
  }();
  return *instance;
}

Runtime::Runtime() {
  for (int device = 0; device < settings().num_devices; ++device) {
    devices_.push_back(std::make_unique<Device>());
    queues_.push_back(std::make_unique<StreamQueue>(queues_.size(), device));
  }
}

StreamQueue& Runtime::queue(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  return *queues_.at(stream.id() == 0 ? static_cast<std::size_t>(stream.device_index())
                                      : static_cast<std::size_t>(stream.id()));
}

c10::Stream Runtime::new_stream(int device) {
  const std::lock_guard lock(mutex_);
  Device& owner = *devices_.at(static_cast<std::size_t>(device));
  const std::size_t turn = owner.num_given++ % kStreamsOfDevice;
  if (turn == owner.streams.size()) {
    queues_.push_back(std::make_unique<StreamQueue>(queues_.size(), device));
    owner.streams.push_back(queues_.back().get());
  }
  // Ids of streams are never 0, which means the default one: there is at least one device, whose stream has that place.
  return c10::Stream(c10::Stream::UNSAFE, sim::device(device), static_cast<c10::StreamId>(owner.streams[turn]->id()));
}

void Runtime::throw_violation() {
  if (violations_.empty()) return;
  const std::string first = violations_.front();
  violations_.clear();
  throw Error(first);
}

std::shared_ptr<Block> Runtime::block_at(const void* address) const {
  for (const auto* const blocks : {&blocks_, &pinned_}) {
    const auto behind = blocks->upper_bound(static_cast<const char*>(address));
    if (behind != blocks->begin() && std::prev(behind)->second->has(address)) return std::prev(behind)->second;
  }
  return nullptr;
}

void Runtime::launch(StreamQueue& queue, const std::string& op, const std::vector<SpanAccess>& accesses,
                     std::function<void()> kernel) {
  const std::lock_guard lock(mutex_);
  throw_violation();
  ++counts_.num_launches;
  devices_.at(static_cast<std::size_t>(queue.device()))->is_in_use = true;
  queue.clock().learn(known_to_host());
  const std::uint64_t tick = queue.clock().advance(queue.id());
  std::vector<std::shared_ptr<Block>> kept;
  std::size_t num_bytes = 0;
  for (const SpanAccess& access : accesses) {
    if (access.span.is_empty()) continue;
    auto block = block_at(access.span.begin());
    if (!block) throw Error(op + " uses memory that is not, or no longer, allocated on a device");
    if (!block->is_pinned() && block->device() != queue.device() && op != "copy") {
      throw Error(op + " on device " + std::to_string(queue.device()) + " uses memory of device " +
                  std::to_string(block->device()));
    }
    num_bytes += static_cast<std::size_t>(access.span.end() - access.span.begin());
    block->add({access.span, access.writes, queue.id(), tick, op}, queue.clock());
    if (block->is_pinned()) block->protect(known_to_a_host_);
    kept.push_back(std::move(block));
  }
  const microseconds delay = delay_of(queue.id(), tick);
  const microseconds duration = settings().duration ? settings().duration(op, num_bytes) : microseconds(0);
  queue.push([kept = std::move(kept), kernel = std::move(kernel), delay, duration] {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    const auto end = steady_clock::now() + duration;
    kernel();
    if (duration.count() > 0) std::this_thread::sleep_until(end);
  });
}

void Runtime::record(EventState& event, StreamQueue& queue) {
  const std::lock_guard lock(mutex_);
  queue.clock().learn(known_to_host());
  event.stream = &queue;
  event.clock = queue.clock();
  event.device = queue.device();
  event.when_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  event.ticket = queue.push([when = event.when_ns] { *when = now_ns(); });
}

void Runtime::block(const EventState& event, StreamQueue& queue) {
  const std::lock_guard lock(mutex_);
  if (!event.stream) return;  // never recorded
  queue.clock().learn(event.clock);
  if (event.stream != &queue) {
    queue.push([stream = event.stream, ticket = event.ticket] { stream->wait(ticket); });
  }
}

/// The calling host thread has waited.
void Runtime::learn(const Clock& clock) {
  host_learns(clock);
  const std::lock_guard lock(mutex_);
  known_to_a_host_.learn(clock);
  for (const auto& [address, block] : pinned_) block->protect(known_to_a_host_);
  throw_violation();
}

bool Runtime::is_done(const EventState& event) {
  if (!event.stream) return true;
  if (!event.stream->is_done(event.ticket)) return false;
  learn(event.clock);
  return true;
}

void Runtime::wait(const EventState& event) {
  if (!event.stream) return;
  {
    const std::lock_guard lock(mutex_);
    ++counts_.num_host_waits;
  }
  event.stream->wait(event.ticket);
  learn(event.clock);
  rethrow(event.stream->device());
}

/// On real devices too an error is known by the next wait for any stream of the device.
void Runtime::rethrow(int device) {
  for (StreamQueue* const queue : queues_of(device)) queue->rethrow();
}

std::vector<StreamQueue*> Runtime::queues_of(int device) {
  const std::lock_guard lock(mutex_);
  std::vector<StreamQueue*> queues;
  for (const auto& queue : queues_) {
    if (queue->device() == device) queues.push_back(queue.get());
  }
  return queues;
}

bool Runtime::is_done(StreamQueue& queue) {
  EventState now;
  {
    const std::lock_guard lock(mutex_);
    now = {&queue, queue.last_ticket(), queue.clock(), nullptr};
  }
  return is_done(now);
}

void Runtime::wait(StreamQueue& queue) {
  EventState now;
  {
    const std::lock_guard lock(mutex_);
    now = {&queue, queue.last_ticket(), queue.clock(), nullptr};
  }
  wait(now);
}

void Runtime::count_call(int device) {
  if (device == current_device()) return;
  const std::lock_guard lock(mutex_);
  ++counts_.num_calls_from_elsewhere;
}

void Runtime::wait_for_device(int device) {
  for (StreamQueue* const queue : queues_of(device)) wait(*queue);
}

void Runtime::wait_for_all() {
  for (int device = 0; device < static_cast<int>(devices_.size()); ++device) wait_for_device(device);
}

void Runtime::forget_lingering(Device& device) {
  std::erase_if(device.lingering, [&](const Lingering& block) {
    const bool is_over = std::ranges::all_of(block.uses, [](const Use& use) { return use.queue->is_done(use.ticket); });
    if (is_over) device.used -= block.charged;
    return is_over;
  });
}

/// As the allocators of real devices do before they give up.
bool Runtime::wait_for_lingering(int device, std::unique_lock<QuietMutex>& lock) {
  Device& from = *devices_[static_cast<std::size_t>(device)];
  if (from.lingering.empty()) return false;
  const std::vector<Use> uses = from.lingering.front().uses;
  lock.unlock();
  for (const Use& use : uses) use.queue->wait(use.ticket);
  lock.lock();
  forget_lingering(from);
  return true;
}

char* Runtime::allocate(int device, StreamQueue& queue, std::size_t num_bytes) {
  std::unique_lock lock(mutex_);
  throw_violation();
  Device& from = *devices_.at(static_cast<std::size_t>(device));
  const std::size_t charged = charged_for(num_bytes);
  forget_lingering(from);
  while (from.used + charged > settings().bytes_of_device) {
    if (wait_for_lingering(device, lock)) continue;
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(num_bytes), from.used, settings().bytes_of_device,
                                     sim::device(device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim:", device, " is out of memory: ", num_bytes,
                     " bytes were asked for, and ", from.used, " of ", settings().bytes_of_device, " are in use");
  }
  char* const address = from.space.take(num_bytes);
  char* const for_kernels = AddressSpace::for_kernels(address);
  std::memset(for_kernels, 0xff, num_bytes);  // NaN
  from.used += charged;
  from.peak = std::max(from.peak, from.used);
  from.allocated.add(charged);
  from.is_in_use = true;
  blocks_[address] = std::make_shared<Block>(Block::Kind::kDevice, address, for_kernels, num_bytes, device, queue.id());
  return address;
}

char* Runtime::allocate_pinned(std::size_t num_bytes) {
  const std::size_t length = whole_pages(num_bytes);
  const int file = memfd_create("tessera-sim-pinned", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(length)) != 0) throw Error("no memory to pin");
  const auto map = [&] {
    void* const mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) throw Error("no memory to pin");
    return static_cast<char*>(mapped);
  };
  char* const for_host = map();
  char* const for_kernels = map();
  close(file);
  const std::lock_guard lock(mutex_);
  pinned_[for_host] = std::make_shared<Block>(Block::Kind::kPinned, for_host, for_kernels, num_bytes, -1, 0);
  return for_host;
}

std::size_t Runtime::free(void* address) noexcept {
  std::shared_ptr<Block> block;  // its kernels hold it too
  const std::lock_guard lock(mutex_);
  const auto pinned = pinned_.find(static_cast<char*>(address));
  if (pinned != pinned_.end()) {
    block = pinned->second;
    pinned_.erase(pinned);
    return 0;
  }
  const auto found = blocks_.find(static_cast<char*>(address));
  if (found == blocks_.end() || queues_.empty()) return 0;
  block = found->second;
  blocks_.erase(found);
  Device& device = *devices_[static_cast<std::size_t>(block->device())];
  Clock known = queues_[block->stream()]->clock();
  known.learn(known_to_host());
  if (std::string use = block->use_at_end(known); !use.empty()) violations_.push_back(std::move(use));
  device.allocated.now -= charged_for(block->num_bytes());
  if (block->recorded().empty()) {
    device.used -= charged_for(block->num_bytes());
    return block->num_bytes();
  }
  Lingering lingering{charged_for(block->num_bytes()), {}};
  for (const std::size_t stream : block->recorded()) {
    lingering.uses.push_back({queues_[stream].get(), queues_[stream]->last_ticket()});
  }
  device.lingering.push_back(std::move(lingering));
  return block->num_bytes();
}

void Runtime::record_use(const void* address, StreamQueue& queue) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(address);
  if (block && queue.id() != block->stream()) block->record(queue.id());
}

bool Runtime::is_pinned(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(address);
  return block && block->is_pinned();
}

int Runtime::device_of(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(address);
  return block && !block->is_pinned() ? block->device() : -1;
}

char* Runtime::for_kernels(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(address);
  if (!block) throw Error("neither memory of a device nor pinned memory");
  return block->for_kernels(address);
}

std::size_t Runtime::bytes_in_use(int device) {
  const std::lock_guard lock(mutex_);
  forget_lingering(*devices_.at(static_cast<std::size_t>(device)));
  return devices_[static_cast<std::size_t>(device)]->used;
}

std::size_t Runtime::peak_bytes(int device) {
  const std::lock_guard lock(mutex_);
  return devices_.at(static_cast<std::size_t>(device))->peak;
}

void Runtime::reset_peak_bytes(int device) {
  const std::lock_guard lock(mutex_);
  Device& one = *devices_.at(static_cast<std::size_t>(device));
  forget_lingering(one);
  one.peak = one.used;
  one.allocated.peak = one.allocated.now;
}

Usage Runtime::allocated(int device) {
  const std::lock_guard lock(mutex_);
  return devices_.at(static_cast<std::size_t>(device))->allocated;
}

bool Runtime::is_in_use(int device) {
  const std::lock_guard lock(mutex_);
  return devices_.at(static_cast<std::size_t>(device))->is_in_use;
}

Counts Runtime::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void synchronise() { Runtime::get().wait_for_all(); }
std::size_t bytes_in_use(int device) { return Runtime::get().bytes_in_use(device); }
std::size_t peak_bytes(int device) { return Runtime::get().peak_bytes(device); }
void reset_peak_bytes(int device) { Runtime::get().reset_peak_bytes(device); }
Counts counts() { return Runtime::get().counts(); }

}  // namespace tessera::testing::sim
