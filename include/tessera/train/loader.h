#pragma once

#include <tessera/core/options.h>
#include <tessera/train/pin_memory.h>
#include <tessera/train/sampler.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace tessera {

struct LoaderOptions {
  /// Threads that make batches. Raise it when making one takes longer than a step; the order stays the same.
  TESSERA_ARG(std::int64_t, num_threads) = 1;
  /// Batches that may lie ready or in the making. Raise it when the time to make one varies; each costs its memory.
  TESSERA_ARG(std::int64_t, prefetch) = 4;
  /// Whether the threads copy batches into pinned memory, from which `batch.to(device, /*non_blocking=*/true)` copies
  /// while the host goes on. Set it where there is an accelerator; where there is none it is refused.
  TESSERA_ARG(bool, pin_memory) = false;

 public:
  static const FieldList<LoaderOptions>& fields();
};

namespace train {

/// Throws ConfigError: batches of this type cannot be pinned.
[[noreturn]] void refuse_to_pin(const std::type_info& batch);

/// A Loader whose batch type is erased.
class BatchQueue {
 public:
  using Make = std::function<std::shared_ptr<void>(const SampleBatch&)>;

  BatchQueue(Sampler sampler, Make make, const LoaderOptions& options);
  ~BatchQueue();
  BatchQueue(BatchQueue&&) noexcept;
  BatchQueue& operator=(BatchQueue&&) noexcept;

  std::shared_ptr<void> next();  ///< null at the end of an epoch
  const SamplerState& state() const;
  void restore(const SamplerState& state);
  double seconds_waited() const;
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace train

/// Makes batches ahead, on threads of its own, in the order of a sampler:
///
///   tessera::Loader loader(sampler, [dataset](const tessera::SampleBatch& part) {
///     return dataset.batch(part.samples);
///   });
///   for (tessera::TokenBatch& batch : loader) train_on(batch);  // one epoch; the next loop is the next epoch
///   save(loader.state());                                       // of what was given out, not of what lies ready
///
/// When the function throws, the `next()` that would have returned its batch rethrows, after the batches before it were
/// returned. So does every later `next()`. After `stop()`, `next()` throws ConfigError.
/// With `pin_memory` the type of a batch is one of train::can_pin(), and the threads have the current device of the
/// thread that makes the loader. The bytes of a batch are free for another one when the copies from it are done.
/// Requires: with several threads, a function that may run on all of them at once.
/// Thread-safety: one thread calls the members.
template <class Batch>
class Loader {
 public:
  template <class Function>
  Loader(Sampler sampler, Function make, const LoaderOptions& options = {})
      : queue_(
            std::move(sampler),
            [make = std::move(make), pins = options.pin_memory()](const SampleBatch& part) -> std::shared_ptr<void> {
              auto batch = std::make_shared<Batch>(make(part));
              if constexpr (train::can_pin<Batch>()) {
                if (pins) train::pin(*batch);
              }
              return batch;
            },
            options) {
    if (options.pin_memory() && !train::can_pin<Batch>()) train::refuse_to_pin(typeid(Batch));
  }

  /// The next batch. At the end of an epoch nothing, once; the call after that returns the first batch of the next
  /// epoch. Blocks: until it is made.
  std::optional<Batch> next() {
    const std::shared_ptr<void> batch = queue_.next();
    if (!batch) return std::nullopt;
    return std::move(*static_cast<Batch*>(batch.get()));
  }

  /// The position behind the batches that `next()` has returned, for `restore` of a loader or a sampler.
  const SamplerState& state() const { return queue_.state(); }
  /// Continues where `state` was taken, also after `stop()` or an error. Batches that are ready are dropped. Throws as
  /// `Sampler::restore` does, and then nothing has changed. Blocks: until the batches in the making are done.
  void restore(const SamplerState& state) { queue_.restore(state); }
  /// How long `next()` has waited since the start: what reading costs the training loop.
  double seconds_waited() const { return queue_.seconds_waited(); }
  /// Ends the threads and drops the batches that are ready. Blocks: until those in the making are done.
  /// The destructor does the same.
  void stop() { queue_.stop(); }

  /// Iterates once over the batches up to the end of the epoch.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    explicit Iterator(Loader& loader) : loader_(&loader), batch_(loader.next()) {}
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      batch_.reset();  // before waiting for the next one: else two would be alive
      batch_ = loader_->next();
      return *this;
    }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) { return !iterator.batch_; }

   private:
    Loader* loader_;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() { return {}; }

 private:
  train::BatchQueue queue_;
};

template <class Function>
Loader(Sampler, Function) -> Loader<std::invoke_result_t<Function, const SampleBatch&>>;
template <class Function>
Loader(Sampler, Function, LoaderOptions) -> Loader<std::invoke_result_t<Function, const SampleBatch&>>;

}  // namespace tessera
