#include "offload/store/budget.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <cstdio>

namespace tessera::offload {
namespace {

constexpr std::array<const char*, kNumKinds> kKindNames{"parameters", "gradients", "optimizer state", "buffers"};

}  // namespace

std::string bytes_text(std::uint64_t num_bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (num_bytes < 1024) return std::to_string(num_bytes) + " bytes";
  double value = static_cast<double>(num_bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::shared_ptr<Budget> Budget::make(std::string name, std::string option, std::uint64_t limit_bytes,
                                     std::shared_ptr<Budget> whole) {
  return std::shared_ptr<Budget>(new Budget(std::move(name), std::move(option), limit_bytes, std::move(whole)));
}

Budget::Budget(std::string name, std::string option, std::uint64_t limit_bytes, std::shared_ptr<Budget> whole)
    : name_(std::move(name)), option_(std::move(option)), limit_bytes_(limit_bytes), whole_(std::move(whole)) {}

Budget::Share& Budget::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  budget_ = std::exchange(other.budget_, nullptr);
  num_bytes_ = std::exchange(other.num_bytes_, 0);
  kind_ = other.kind_;
  return *this;
}

void Budget::Share::give_back() noexcept {
  if (budget_) budget_->uncount(num_bytes_, kind_);
  budget_.reset();
  num_bytes_ = 0;
}

Budget* Budget::count(std::uint64_t num_bytes, Kind kind) {
  {
    const std::lock_guard lock(mutex_);
    if (num_bytes > limit_bytes_ - sum_) return this;
    used_[static_cast<std::size_t>(kind)] += num_bytes;
    sum_ += num_bytes;
  }
  if (Budget* const full = whole_ ? whole_->count(num_bytes, kind) : nullptr) {
    uncount_here(num_bytes, kind);
    return full;
  }
  const std::lock_guard lock(mutex_);
  peak_ = std::max(peak_, sum_);
  return nullptr;
}

void Budget::uncount_here(std::uint64_t num_bytes, Kind kind) noexcept {
  const std::lock_guard lock(mutex_);
  used_[static_cast<std::size_t>(kind)] -= num_bytes;
  sum_ -= num_bytes;
}

void Budget::uncount(std::uint64_t num_bytes, Kind kind) noexcept {
  uncount_here(num_bytes, kind);
  if (whole_) whole_->uncount(num_bytes, kind);
}

std::optional<Budget::Share> Budget::try_take(std::uint64_t num_bytes, Kind kind) {
  if (count(num_bytes, kind)) return std::nullopt;
  Share share;
  share.budget_ = shared_from_this();
  share.num_bytes_ = num_bytes;
  share.kind_ = kind;
  return share;
}

Budget::Share Budget::take(std::uint64_t num_bytes, Kind kind, const std::string& what) {
  if (auto share = try_take(num_bytes, kind)) return std::move(*share);
  const Budget& full = whole_ && whole_->free_bytes() < num_bytes ? *whole_ : *this;
  throw StorageError("offload: " + bytes_text(num_bytes) + " for " + what + " do not fit into " + full.text() +
                     ". Raise " + full.option_ + ", use smaller units, or move more to files");
}

std::uint64_t Budget::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return sum_;
}

std::uint64_t Budget::used_bytes(Kind kind) const {
  const std::lock_guard lock(mutex_);
  return used_[static_cast<std::size_t>(kind)];
}

std::uint64_t Budget::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::uint64_t Budget::free_bytes() const {
  const std::uint64_t free = limit_bytes_ - used_bytes();
  return whole_ ? std::min(free, whole_->free_bytes()) : free;
}

std::string Budget::text() const {
  const std::lock_guard lock(mutex_);
  std::string text = name_ + ": " + bytes_text(sum_) + " of " + bytes_text(limit_bytes_) + " (" + option_ + ")";
  const char* separator = ": ";
  for (std::size_t kind = 0; kind < kNumKinds; ++kind) {
    if (used_[kind] == 0) continue;
    text += separator + std::string(kKindNames[kind]) + " " + bytes_text(used_[kind]);
    separator = ", ";
  }
  return text;
}

}  // namespace tessera::offload
