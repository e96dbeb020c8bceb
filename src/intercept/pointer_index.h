#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace tessera::intercept {

/// Values by pointer, several for one; made once and then only read. Every tensor of every operator is looked up in it
/// and hardly any is found, so what counts is a miss: one multiplication and, as a rule, one look at one slot.
/// Thread-safety: all functions that are const.
template <class Value>
class PointerIndex {
 public:
  PointerIndex() : PointerIndex(std::vector<std::pair<const void*, Value>>{}) {}

  /// Null pointers are left out.
  explicit PointerIndex(std::vector<std::pair<const void*, Value>> pairs) {
    std::erase_if(pairs, [](const auto& pair) { return pair.first == nullptr; });
    // Mostly empty, so that a look that finds nothing ends at the first slot.
    const std::size_t num_slots = std::bit_ceil(4 * pairs.size() + 1);
    shift_ = 64 - std::bit_width(num_slots - 1);
    mask_ = num_slots - 1;
    slots_.resize(num_slots);
    // Those of one key side by side, in the order in which they came.
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
    // The golden ratio spreads what differs in its lower bits over the upper ones, which are taken.
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

}  // namespace tessera::intercept
