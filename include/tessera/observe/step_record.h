#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::observe {

/// What a training loop reports after a step. Fields that are not set appear nowhere:
///
///   observer.record({.step = 12, .loss = loss.item<double>(), .tokens = batch.numel() * world.size()});
struct StepRecord {
  std::int64_t step = 0;  ///< how many steps are done, this one included
  std::optional<double> loss{};
  std::int64_t tokens = 0;  ///< of this step, over all ranks; 0: not counted
  std::optional<double> learning_rate{};
  std::optional<double> gradient_norm{};
  /// How long the step took. Left out, it is the time since the previous record (see Observer::restart_clock()), on a
  /// device by its events.
  std::optional<double> seconds{};
  /// Anything else. Names become tags in TensorBoard and keys in JSON, as "validation/loss".
  std::vector<std::pair<std::string, double>> scalars{};
};

/// What a process occupies.
struct ProcessMemory {
  std::int64_t resident_bytes = 0;
  std::int64_t peak_bytes = 0;  ///< the largest that `resident_bytes` ever was
};

/// What this process's tensors occupy of the device that the rank trains on.
struct DeviceMemory {
  std::int64_t allocated_bytes = 0;
  /// The largest that `allocated_bytes` ever was, or since LibTorch's resetPeakStats().
  std::int64_t peak_bytes = 0;
};

/// The steps since the previous summary: what a Sink is given.
struct StepSummary {
  StepRecord last;             ///< the latest step; its `tokens` and `seconds` are its own
  std::int64_t num_steps = 1;  ///< records that this stands for
  std::int64_t tokens = 0;     ///< of all of them
  double seconds = 0;          ///< of all of them; of those on a device, by its events
  std::int64_t time_ns = 0;    ///< when the latest was recorded, since 1970
  ProcessMemory memory;        ///< of this process
  /// Of steps on a device: how long the host took to launch them, of all of them. It may run ahead of the device.
  std::optional<double> host_seconds{};
  std::optional<DeviceMemory> device_memory{};

  double step_seconds() const { return seconds / static_cast<double>(num_steps); }
  std::optional<double> host_step_seconds() const {
    return host_seconds ? std::optional(*host_seconds / static_cast<double>(num_steps)) : std::nullopt;
  }
  /// 0 when tokens are not counted.
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// Which run this is, and which rank of it.
struct RunDescription {
  int rank = 0;
  int num_ranks = 1;
  std::int64_t total_steps = 0;  ///< what `StepRecord::step` will reach; 0: unknown, so no ETA is shown
  std::string config{};          ///< shown with the run, as print_config() writes it; empty: nothing is shown
};

/// A destination for summaries. Derive from it for one of your own: see Observer::add_sink().
/// One thread calls all functions, never the training thread. An exception ends the sink, not the training.
class Sink {
 public:
  Sink() = default;
  virtual ~Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  virtual void take(const StepSummary& summary) = 0;
  /// Called some times a second: write what is buffered.
  virtual void flush() {}
  /// The last call.
  virtual void close() {}
};

}  // namespace tessera::observe
