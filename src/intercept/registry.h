#pragma once

#include <tessera/intercept/watch.h>

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "intercept/pointer_index.h"

namespace tessera::intercept {

struct Watch::Entry {
  Entry(std::vector<at::Tensor> watched, std::weak_ptr<Listener> hears, Interest wants)
      : tensors(std::move(watched)), listener(std::move(hears)), interest(wants) {}

  /// Whether one of the tensors lies in that storage.
  bool holds(const c10::StorageImpl* storage) const;

  mutable std::mutex mutex;
  std::vector<at::Tensor> tensors;  // none when the watch has ended, though threads keep the table they saw last
  std::weak_ptr<Listener> listener;
  Interest interest;
  std::atomic<bool> active = true;
};

/// The watches of the process, behind LibTorch's one list of callbacks.
///
/// Note [One registry for the process]
/// A callback of RecordFunction is a plain function: LibTorch hands it nothing to tell whose it is. So what it looks up
/// has to be found from the process. This is the only such state of ours; it holds no more than what LibTorch's own
/// list of callbacks would, and is empty when the last watch has gone.
class Registry {
 public:
  /// What the callback reads: never changed, only replaced.
  struct Table {
    struct Place {
      std::shared_ptr<Watch::Entry> entry;
    };
    // Views are found by their storage; a tensor that was given another one since (by torch::load, say) by itself.
    PointerIndex<Place> by_storage;
    PointerIndex<Place> by_tensor;
    std::vector<std::shared_ptr<Watch::Entry>> every_operator;
  };

  static Registry& of_process();

  void add(const std::shared_ptr<Watch::Entry>& entry);
  void remove(const std::shared_ptr<Watch::Entry>& entry) noexcept;
  void set_active(Watch::Entry& entry, bool active);
  /// The table of now: made when an operator first asks for it after the watches changed.
  std::shared_ptr<const Table> table();
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  void change();
  std::shared_ptr<const Table> make_table() const;
  void count_active(int change);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Watch::Entry>> entries_;
  std::shared_ptr<const Table> table_;  // none: the watches have changed
  std::atomic<std::uint64_t> version_ = 1;
  int num_active_ = 0;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace tessera::intercept
