#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::intercept {

/// Whether LibTorch's operator of this name ("aten::bernoulli_") always draws random numbers. Operators that call these
/// (aten::dropout) do not count: they may run without drawing.
bool draws_random_numbers(std::string_view operator_name);

/// Reports whether this thread has called such operators since the object was made. Costs a callback for each operator
/// of the thread. Thread-safety: made, asked and ended by one thread. Several may live at the same time.
class RandomDraws {
 public:
  RandomDraws();
  ~RandomDraws();
  RandomDraws(const RandomDraws&) = delete;
  RandomDraws& operator=(const RandomDraws&) = delete;

  bool any() const;

 private:
  std::uint64_t before_;
};

}  // namespace tessera::intercept
