// 40 steps straight against 20, a checkpoint on disk, and 20 more. Ranks as threads, which share a random generator: so
// without random numbers. With processes and all: process_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>

#include "resume/program.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kSteps = 40;

class ResumeThreads : public ::testing::TestWithParam<std::string> {};

TEST_P(ResumeThreads, GoOnAsIfTheyHadNotStopped) {
  const std::string& variant = GetParam();
  const bool is_reproducible = variant.ends_with("reproducible");
  Weights expected;
  const ProgramOptions straight{
      .variant = variant, .optimizer = optimizer_of(variant), .is_noisy = false, .until = kSteps};
  const int num_saving = variant == "alone" ? 1 : 2;
  run_threads(num_saving, [&](const World& world) {
    const Weights found = run_program(world, straight);
    if (world.rank() == 0) expected = found;
  });
  const TemporaryFolder folder;
  ProgramOptions first = straight;
  first.until = kSteps / 2;
  first.save_to = folder.path();
  run_threads(num_saving, [&](const World& world) { run_program(world, first); });
  ProgramOptions second = straight;
  second.load_from = folder.path();
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    if (!fits(variant, num_ranks)) continue;
    run_threads(num_ranks, [&](const World& world) {
      const std::string what = variant + " on " + std::to_string(num_ranks);
      const Weights found = run_program(world, second);
      if (num_ranks == num_saving || is_reproducible) {
        require_same_bits(found, expected, what);
      } else {
        require_close(found, expected, tolerance_of(variant), what);
      }
    });
  }
}

std::vector<std::string> variants() {
  std::vector<std::string> names = trainee_variants();
  for (const char* strategy : {"ddp", "full", "grad_op", "zero1", "no_shard", "hybrid"}) {
    names.push_back(std::string(strategy) + " fp32");
  }
  for (const char* strategy : {"grad_op", "zero1", "no_shard", "hybrid"}) {
    names.push_back(std::string(strategy) + " mixed");
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Variants, ResumeThreads, ::testing::ValuesIn(variants()), [](const auto& one) {
  std::string text = one.param;
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
});

}  // namespace
}  // namespace tessera::testing
