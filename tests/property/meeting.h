#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::testing {

/// Where the ranks of a program tell each other how an action went. Memory that they share and nothing of the library,
/// which is what is being tested.
class Meeting {
 public:
  static constexpr int kMaxRanks = 4;
  static constexpr std::size_t kMaxText = 4096;

  /// All zero at first.
  struct Seat {
    std::atomic<std::uint32_t> posted;
    std::atomic<std::uint32_t> read;
    char text[kMaxText];
  };
  struct Memory {
    Seat seats[kMaxRanks];
  };

  Meeting(Memory& memory, int rank, int num_ranks) : memory_(memory), rank_(rank), num_ranks_(num_ranks) {}

  /// The texts of all ranks. Throws std::runtime_error when one does not come in time: it hangs, or is gone.
  std::vector<std::string> exchange(const std::string& mine);

 private:
  template <class Done>
  void wait(const Done& done) const;

  Memory& memory_;
  int rank_;
  int num_ranks_;
  std::uint32_t round_ = 0;
};

}  // namespace tessera::testing
