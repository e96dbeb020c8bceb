#include <tessera/core/error.h>
#include <tessera/train/loader.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Type.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

namespace tessera {

const FieldList<LoaderOptions>& LoaderOptions::fields() {
  static const FieldList<LoaderOptions> list =
      FieldList<LoaderOptions>("loader")
          .add("num_threads", &LoaderOptions::num_threads_, "Threads that make batches.")
          .add("prefetch", &LoaderOptions::prefetch_, "Batches that may lie ready or in the making.")
          .add("pin_memory", &LoaderOptions::pin_memory_,
               "Whether batches lie in pinned memory, from which a device copies while the host goes on.");
  return list;
}

namespace train {
namespace {

using Clock = std::chrono::steady_clock;

/// One result of the sampler, from the time when a thread begins with it until the caller receives it.
struct Slot {
  SamplerState after;
  std::shared_ptr<void> batch;  ///< null at the end of an epoch
  std::exception_ptr error;
  bool ready = false;
};

void check(const LoaderOptions& options) {
  std::string faults;
  if (options.num_threads() < 1) faults += "\n  num_threads is " + std::to_string(options.num_threads());
  if (options.prefetch() < 1) faults += "\n  prefetch is " + std::to_string(options.prefetch());
  if (!faults.empty()) throw ConfigError("a loader cannot work so, these must be 1 or more:" + faults);
}

/// The calling thread's current device, when batches are to be pinned for it.
std::optional<c10::DeviceIndex> device_to_pin_for(const LoaderOptions& options) {
  if (!options.pin_memory()) return std::nullopt;
  if (!at::accelerator::getAccelerator() || at::accelerator::deviceCount() == 0) {
    throw ConfigError(
        "pin_memory is true, and this process sees no accelerator that could read pinned memory: set it "
        "only where there is one, as by pin_memory(!world.device().is_cpu())");
  }
  return at::accelerator::getDeviceIndex();
}

}  // namespace

struct BatchQueue::State {
  State(Sampler its_sampler, Make its_make, const LoaderOptions& its_options)
      : sampler(std::move(its_sampler)),
        make(std::move(its_make)),
        options(its_options),
        device(device_to_pin_for(options)),
        capacity(static_cast<std::size_t>(options.prefetch())),
        consumed(sampler.state()) {
    check(options);
    try {
      for (std::int64_t i = 0; i < options.num_threads(); ++i) threads.emplace_back([this] { work(); });
    } catch (...) {
      stop();  // when one thread cannot be started, the others must end
      throw;
    }
  }
  ~State() { stop(); }

  void work();
  std::shared_ptr<Slot> take_on(std::optional<SampleBatch>& part);
  void stop();

  Sampler sampler;
  const Make make;
  const LoaderOptions options;
  const std::optional<c10::DeviceIndex> device;
  const std::size_t capacity;
  SamplerState consumed;        // the caller's alone
  Clock::duration waited{};     // the caller's alone
  std::exception_ptr ended_by;  // the caller's alone
  std::vector<std::thread> threads;

  std::mutex mutex;  // guards what follows, and the sampler
  std::condition_variable room;
  std::condition_variable done;
  // The batches in the sampler's order. A thread appends a slot before it makes the batch, so the order is kept
  // whichever thread is quicker.
  std::deque<std::shared_ptr<Slot>> slots;
  bool stopping = false;
};

/// Null when the loader ends. `part` is empty at the end of an epoch, when there is no batch to make.
std::shared_ptr<Slot> BatchQueue::State::take_on(std::optional<SampleBatch>& part) {
  std::unique_lock lock(mutex);
  room.wait(lock, [this] { return stopping || slots.size() < capacity; });
  if (stopping) return nullptr;
  part = sampler.next();
  auto slot = std::make_shared<Slot>();
  slot->after = sampler.state();
  slots.push_back(slot);
  return slot;
}

void BatchQueue::State::work() {
  std::optional<SampleBatch> part;
  while (const std::shared_ptr<Slot> slot = take_on(part)) {
    std::shared_ptr<void> batch;
    std::exception_ptr error;
    try {
      // Pinning on a new thread would make a context on the first device, whichever the training thread uses.
      if (device) at::accelerator::setDeviceIndex(*device);
      if (part) batch = make(*part);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    slot->batch = std::move(batch);
    slot->error = error;
    slot->ready = true;
    stopping = stopping || error;  // later batches are never returned
    if (error) room.notify_all();
    done.notify_all();
  }
}

void BatchQueue::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    room.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

void refuse_to_pin(const std::type_info& batch) {
  const std::string type = c10::demangle(batch.name());
  throw ConfigError("pin_memory is true, and a loader does not know the tensors of a batch of type " + type +
                    ": give it a member `pin_memory() const` that returns the batch with its tensors pinned");
}

BatchQueue::BatchQueue(Sampler sampler, Make make, const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(sampler), std::move(make), options)) {}
BatchQueue::~BatchQueue() = default;
BatchQueue::BatchQueue(BatchQueue&&) noexcept = default;
BatchQueue& BatchQueue::operator=(BatchQueue&&) noexcept = default;

std::shared_ptr<void> BatchQueue::next() {
  State& state = *state_;
  if (state.ended_by) std::rethrow_exception(state.ended_by);
  const auto start = Clock::now();
  std::unique_lock lock(state.mutex);
  state.done.wait(lock, [&] { return state.slots.empty() ? state.stopping : state.slots.front()->ready; });
  state.waited += Clock::now() - start;
  if (state.slots.empty()) throw ConfigError("a loader was asked for a batch after stop()");
  const std::shared_ptr<Slot> slot = std::move(state.slots.front());
  state.slots.pop_front();
  state.room.notify_one();
  lock.unlock();
  if (slot->error) {
    state.ended_by = slot->error;
    state.stop();
    std::rethrow_exception(slot->error);
  }
  state.consumed = slot->after;
  return std::move(slot->batch);
}

const SamplerState& BatchQueue::state() const { return state_->consumed; }

void BatchQueue::restore(const SamplerState& state) {
  Sampler sampler = [this] {
    const std::lock_guard lock(state_->mutex);
    return state_->sampler;
  }();
  sampler.restore(state);
  state_->stop();
  auto fresh = std::make_unique<State>(std::move(sampler), state_->make, state_->options);
  fresh->waited = state_->waited;
  state_ = std::move(fresh);
}

double BatchQueue::seconds_waited() const { return std::chrono::duration<double>(state_->waited).count(); }

void BatchQueue::stop() {
  state_->stop();
  const std::lock_guard lock(state_->mutex);
  state_->slots.clear();
}

}  // namespace train
}  // namespace tessera
