#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tessera::offload {

/// What bytes are used for.
enum class Kind { kParameters, kGradients, kStates, kBuffers };
inline constexpr std::size_t kNumKinds = 4;

/// "12 bytes", "1.50 GiB": as messages and logs show them.
std::string bytes_text(std::uint64_t num_bytes);

/// A limit on the bytes of one memory. Bytes are taken before memory is allocated, and given back after it is freed, so
/// the memory itself is never above the limit.
/// Thread-safety: all members may be called from any thread.
class Budget : public std::enable_shared_from_this<Budget> {
 public:
  /// `name` is for messages: "host memory"; `option` is the one that sets the limit. What is taken counts in `whole`
  /// too.
  static std::shared_ptr<Budget> make(std::string name, std::string option, std::uint64_t limit_bytes,
                                      std::shared_ptr<Budget> whole = nullptr);

  /// Bytes that count until this is destroyed.
  class Share {
   public:
    Share() = default;
    ~Share() { give_back(); }
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    std::uint64_t num_bytes() const { return num_bytes_; }

   private:
    friend class Budget;
    void give_back() noexcept;

    std::shared_ptr<Budget> budget_;
    std::uint64_t num_bytes_ = 0;
    Kind kind_ = Kind::kBuffers;
  };

  /// Throws StorageError, with what there is of each kind, where the bytes do not fit. `what` is for the message: "the
  /// parameters of blocks.3".
  Share take(std::uint64_t num_bytes, Kind kind, const std::string& what);
  /// None where they do not fit.
  std::optional<Share> try_take(std::uint64_t num_bytes, Kind kind);

  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes() const;
  std::uint64_t used_bytes(Kind kind) const;
  std::uint64_t peak_bytes() const;
  /// How many more would fit, here and in the whole.
  std::uint64_t free_bytes() const;
  /// "host memory: 3.00 GiB of 4.00 GiB (host_bytes): parameters 1.00 GiB, states 2.00 GiB"
  std::string text() const;

 private:
  Budget(std::string name, std::string option, std::uint64_t limit_bytes, std::shared_ptr<Budget> whole);
  /// The budget in which they do not fit; null: all of them have counted them.
  Budget* count(std::uint64_t num_bytes, Kind kind);
  void uncount(std::uint64_t num_bytes, Kind kind) noexcept;
  void uncount_here(std::uint64_t num_bytes, Kind kind) noexcept;

  const std::string name_;
  const std::string option_;
  const std::uint64_t limit_bytes_;
  const std::shared_ptr<Budget> whole_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, kNumKinds> used_{};
  std::uint64_t sum_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace tessera::offload
