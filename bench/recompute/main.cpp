// What recomputing costs and saves: a stack of GPT blocks, forward and backward, cut into segments.
//   bench_recompute [NUM_BLOCKS [NUM_ROUNDS]]
// Prints a line of the guide's table for each number of segments: the peak of the bytes of tensors, what the formula
// says, and the processor's time as a multiple of a plain run's. The rounds take turns, so that a noisy machine
// disturbs all of them alike.
#include <tessera/intercept/memory_count.h>
#include <tessera/recompute/recompute.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "gpt/gpt.h"

namespace bench {
namespace {

constexpr GptShape kShape;

/// All blocks in `num_segments` checkpoints, or plainly with 0.
class Stack {
 public:
  explicit Stack(std::int64_t num_blocks)
      : input_(at::ones({kShape.batch, kShape.sequence, kShape.width}).requires_grad_(true)) {
    for (std::int64_t i = 0; i < num_blocks; ++i) blocks_.emplace_back(kShape);
    for (const Block& block : blocks_) {
      for (const at::Tensor& parameter : block->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
    }
    input_.mutable_grad() = at::zeros_like(input_);
  }

  void run(std::int64_t num_segments) const {
    at::Tensor x = input_;
    const auto count = static_cast<std::int64_t>(blocks_.size());
    const std::int64_t length = num_segments == 0 ? count : count / num_segments;
    for (std::int64_t begin = 0; begin < count; begin += length) {
      const auto segment = [this, begin, length](at::Tensor y) {
        for (std::int64_t i = begin; i < begin + length; ++i)
          y = blocks_[static_cast<std::size_t>(i)].ptr()->forward(y);
        return y;
      };
      x = num_segments == 0 ? segment(x) : tessera::recompute(segment, x);
    }
    x.mean().backward();
  }

 private:
  std::vector<Block> blocks_;
  at::Tensor input_;
};

std::int64_t peak_of(const Stack& stack, std::int64_t num_segments) {
  const tessera::intercept::MemoryCount memory;
  stack.run(num_segments);
  return memory.peak_bytes();
}

double seconds_of(const Stack& stack, std::int64_t num_segments) {
  const std::clock_t begin = std::clock();  // of all threads: others on the machine do not count
  stack.run(num_segments);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_table(std::int64_t num_blocks, int num_rounds) {
  const Stack stack(num_blocks);
  std::vector<std::int64_t> cases{0};
  for (std::int64_t count = 1; count <= num_blocks; ++count) {
    if (num_blocks % count == 0) cases.push_back(count);
  }
  std::vector<std::vector<double>> ratios(cases.size());
  std::vector<double> plain;
  for (int round = 0; round <= num_rounds; ++round) {
    const double reference = seconds_of(stack, 0);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double seconds = seconds_of(stack, cases[i]);
      if (round > 0) ratios[i].push_back(seconds / reference);  // the first round warms up
    }
    if (round > 0) plain.push_back(reference);
  }
  const double mib = 1024.0 * 1024.0;
  const long long num_tokens = kShape.batch * kShape.sequence;
  const double boundary = static_cast<double>(kShape.batch * kShape.sequence * kShape.width) * sizeof(float) / mib;
  std::printf("%lld blocks of width %lld, %lld tokens, %.0f ms plain\n", static_cast<long long>(num_blocks),
              static_cast<long long>(kShape.width), num_tokens, 1e3 * median(plain));
  std::printf("| segments | peak MiB | formula MiB | time |\n|---|---|---|---|\n");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const double peak = static_cast<double>(peak_of(stack, cases[i])) / mib;
    const std::int64_t count = std::max<std::int64_t>(cases[i], 1);
    const double of_one = static_cast<double>(peak_of(Stack(num_blocks / count), 0)) / mib;
    std::printf("| %lld | %.1f | %.1f | %.2f |\n", static_cast<long long>(cases[i]), peak,
                static_cast<double>(count - 1) * boundary + of_one, median(ratios[i]));
  }
}

std::int64_t number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size() || number < 1) {
    throw std::invalid_argument("expected a number above 0, found \"" + std::string(text) + "\"");
  }
  return number;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    bench::print_table(argc > 1 ? bench::number_of(argv[1]) : 12,
                       argc > 2 ? static_cast<int>(bench::number_of(argv[2])) : 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_recompute: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
