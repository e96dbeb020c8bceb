#pragma once

#include <c10/core/Stream.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/sim_device/memory.h"
#include "support/sim_device/quiet_mutex.h"
#include "support/sim_device/sim_device.h"
#include "support/sim_device/stream_queue.h"

namespace tessera::testing::sim {

/// A place in a stream, as `c10::Event` keeps it.
struct EventState {
  StreamQueue* stream = nullptr;
  std::uint64_t ticket = 0;
  Clock clock;
  std::shared_ptr<std::atomic<std::int64_t>> when_ns;  ///< 0: not yet
  int device = -1;                                     ///< the stream's, which is gone before the last events are
};

/// Bytes of a device.
struct Usage {
  std::size_t now = 0;
  std::size_t peak = 0;

  void add(std::size_t num_bytes) {
    now += num_bytes;
    peak = std::max(peak, now);
  }
};

struct SpanAccess {
  Span span;
  bool writes;
};

/// The devices of this process: streams, memory, and what is known about their order. Thread-safety: any thread.
class Runtime {
 public:
  static Runtime& get();

  // Streams. The one with id 0 is a device's default stream.
  StreamQueue& queue(const c10::Stream& stream);
  /// A device has a number of them, which are given out in turns, as on CUDA: what made one does not give it back.
  c10::Stream new_stream(int device);
  void launch(StreamQueue& queue, const std::string& op, const std::vector<SpanAccess>& accesses,
              std::function<void()> kernel);
  void record(EventState& event, StreamQueue& queue);
  void block(const EventState& event, StreamQueue& queue);
  bool is_done(const EventState& event);
  void wait(const EventState& event);
  bool is_done(StreamQueue& queue);
  void wait(StreamQueue& queue);
  /// The calling thread says something of this device.
  void count_call(int device);
  void wait_for_device(int device);
  void wait_for_all();

  // Memory.
  char* allocate(int device, StreamQueue& queue, std::size_t num_bytes);
  char* allocate_pinned(std::size_t num_bytes);
  /// Returns how many bytes of a device's memory these were; 0 for pinned memory.
  std::size_t free(void* address) noexcept;
  void record_use(const void* address, StreamQueue& queue);
  bool is_pinned(const void* address);
  /// -1 for none.
  int device_of(const void* address);
  char* for_kernels(const void* address);

  std::size_t bytes_in_use(int device);
  std::size_t peak_bytes(int device);
  /// Of tensors that are there.
  Usage allocated(int device);
  void reset_peak_bytes(int device);
  /// Whether it has had work or memory, as the context of a real device tells.
  bool is_in_use(int device);
  Counts counts();

 private:
  struct Use {
    StreamQueue* queue;
    std::uint64_t ticket;
  };
  /// Freed memory that other streams may use still.
  struct Lingering {
    std::size_t charged;
    std::vector<Use> uses;
  };
  struct Device {
    AddressSpace space;
    std::size_t used = 0;
    std::size_t peak = 0;
    Usage allocated;
    bool is_in_use = false;
    std::vector<Lingering> lingering;
    std::vector<StreamQueue*> streams;  // beside the default one
    std::size_t num_given = 0;
  };

  Runtime();
  void learn(const Clock& clock);
  void throw_violation();
  void rethrow(int device);
  std::vector<StreamQueue*> queues_of(int device);
  std::shared_ptr<Block> block_at(const void* address) const;
  void forget_lingering(Device& device);
  bool wait_for_lingering(int device, std::unique_lock<QuietMutex>& lock);

  QuietMutex mutex_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<StreamQueue>> queues_;
  std::map<const char*, std::shared_ptr<Block>> blocks_;
  std::map<const char*, std::shared_ptr<Block>> pinned_;
  Clock known_to_a_host_;  // of all host threads together
  std::vector<std::string> violations_;
  Counts counts_;
};

/// Of the calling thread.
int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);
void set_current_stream(const c10::Stream& stream);

}  // namespace tessera::testing::sim
