#pragma once

#include <tessera/intercept/watch.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace tessera::intercept {

/// A hash multimap from pointers to values, built once and then only read. Every tensor of every operator is looked up
/// in it and hardly any is found, so misses must be fast: one multiplication and, as a rule, a read of one slot.
/// Thread-safety: const functions may be called by any thread.
template <class Value>
class PointerIndex {
 public:
  PointerIndex() : PointerIndex(std::vector<std::pair<const void*, Value>>{}) {}

  /// Null pointers are left out.
  explicit PointerIndex(std::vector<std::pair<const void*, Value>> pairs) {
    std::erase_if(pairs, [](const auto& pair) { return pair.first == nullptr; });
    // Mostly empty, so that most misses end at the first slot.
    const std::size_t num_slots = std::bit_ceil(4 * pairs.size() + 1);
    shift_ = 64 - std::bit_width(num_slots - 1);
    mask_ = num_slots - 1;
    slots_.resize(num_slots);
    // Values of one key lie side by side, in the order in which they were given.
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const auto& a, const auto& b) { return std::less<>()(a.first, b.first); });
    values_.reserve(pairs.size());
    for (auto& [key, value] : pairs) {
      Slot& slot = slots_[place_of(key)];
      if (slot.count == 0) slot = {key, values_.size(), 0};
      values_.push_back(std::move(value));
      ++slot.count;
    }
  }

  std::span<const Value> find(const void* key) const {
    const Slot& slot = slots_[place_of(key)];
    // The place of a null pointer is an empty slot.
    return {values_.data() + slot.begin, slot.count};
  }

 private:
  struct Slot {
    const void* key = nullptr;
    std::size_t begin = 0;
    std::size_t count = 0;
  };

  /// Where the key is, or would be.
  std::size_t place_of(const void* key) const {
    // Multiplying by the golden ratio spreads differences in the lower bits over the upper bits, which are used.
    constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;
    std::size_t place = shift_ == 64 ? 0 : (std::bit_cast<std::uintptr_t>(key) * kSpread) >> shift_;
    while (slots_[place].key != nullptr && slots_[place].key != key) place = (place + 1) & mask_;
    return place;
  }

  int shift_ = 64;
  std::size_t mask_ = 0;
  std::vector<Slot> slots_;
  std::vector<Value> values_;
};

struct Watch::Entry {
  Entry(std::vector<at::Tensor> watched, std::weak_ptr<Listener> hears, Interest wants)
      : tensors(std::move(watched)), listener(std::move(hears)), interest(wants) {}

  /// Whether one of the tensors lies in that storage.
  bool holds(const c10::StorageImpl* storage) const;

  mutable std::mutex mutex;
  std::vector<at::Tensor> tensors;  // empty once the watch has ended, since threads keep the table that they used last
  std::weak_ptr<Listener> listener;
  Interest interest;
  std::atomic<bool> active = true;
};

/// The watches of the process, served by one global callback of LibTorch.
///
/// Note [One registry for the process]
/// A callback of RecordFunction is a plain function: LibTorch passes it no context of its owner. So the callback has to
/// find its data in state of the process. The registry is the only such state of our callbacks. It holds no more than
/// LibTorch's own list of callbacks would, and is empty when the last watch has ended.
class Registry {
 public:
  /// What the callback reads. Never changed, only replaced.
  struct Table {
    struct Place {
      std::shared_ptr<Watch::Entry> entry;
    };
    // Views are found by their storage. A tensor that was given another storage (by torch::load, say) is found by its
    // own address.
    PointerIndex<Place> by_storage;
    PointerIndex<Place> by_tensor;
    std::vector<std::shared_ptr<Watch::Entry>> every_operator;
  };

  static Registry& of_process();

  void add(const std::shared_ptr<Watch::Entry>& entry);
  void remove(const std::shared_ptr<Watch::Entry>& entry) noexcept;
  void set_active(Watch::Entry& entry, bool active);
  /// The present table. It is built when an operator first needs it after the watches changed.
  std::shared_ptr<const Table> table();
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  void change();
  std::shared_ptr<const Table> make_table() const;
  void count_active(int change);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Watch::Entry>> entries_;
  std::shared_ptr<const Table> table_;  // null: the watches have changed
  std::atomic<std::uint64_t> version_ = 1;
  int num_active_ = 0;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace tessera::intercept
