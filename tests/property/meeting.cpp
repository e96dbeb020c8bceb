#include "property/meeting.h"

#include <cstring>
#include <stdexcept>
#include <thread>

namespace tessera::testing {
namespace {

// Longer than the groups' own timeout: a rank that waits for another there says so first.
constexpr std::chrono::seconds kTimeout{30};

}  // namespace

template <class Done>
void Meeting::wait(const Done& done) const {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    for (int i = 0; !done(memory_.seats[rank]); ++i) {
      if (i < 50) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("HANG: rank " + std::to_string(rank) + " did not come back");
      }
    }
  }
}

std::vector<std::string> Meeting::exchange(const std::string& mine) {
  const std::uint32_t round = ++round_;
  wait([&](const Seat& seat) { return seat.read.load(std::memory_order_acquire) + 1 >= round; });
  Seat& own = memory_.seats[rank_];
  const std::size_t length = std::min(mine.size(), kMaxText - 1);
  std::memcpy(own.text, mine.data(), length);
  own.text[length] = 0;
  own.posted.store(round, std::memory_order_release);
  wait([&](const Seat& seat) { return seat.posted.load(std::memory_order_acquire) >= round; });
  std::vector<std::string> texts;
  for (int rank = 0; rank < num_ranks_; ++rank) texts.emplace_back(memory_.seats[rank].text);
  own.read.store(round, std::memory_order_release);
  return texts;
}

}  // namespace tessera::testing
