// 40 steps straight against 20, a checkpoint on disk, and 20 more in other processes, on the same number of ranks and
// on another: with dropout, buffers that differ on the ranks, a loader and a schedule.
#include <tessera/checkpoint/safetensors.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "resume/program.h"
#include "support/process_roles.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kSteps = 40;
constexpr const char* kNone = "-";

/// BACKEND VARIANT OPTIMIZER NOISY UNTIL LOAD SAVE RESULT; rank 0 writes the weights to RESULT.
void train(const Arguments& arguments) {
  const auto path_of = [](const std::string& text) -> std::optional<std::filesystem::path> {
    if (text == kNone) return std::nullopt;
    return text;
  };
  const World world = init(WorldOptions().backend(arguments.at(0)));
  const Weights weights = run_program(world, {.variant = arguments.at(1),
                                              .optimizer = arguments.at(2),
                                              .is_noisy = arguments.at(3) == "noisy",
                                              .until = std::stoll(arguments.at(4)),
                                              .load_from = path_of(arguments.at(5)),
                                              .save_to = path_of(arguments.at(6))});
  if (world.rank() == 0) save_safetensors(arguments.at(7), weights);
}

/// A series of jobs with one variant.
class Jobs {
 public:
  explicit Jobs(std::string variant) : variant_(std::move(variant)) {}

  Weights run(int num_ranks, bool is_noisy, std::int64_t until, const std::string& load = kNone,
              const std::string& save = kNone) {
    const std::string result = folder_.file("result");
    launch::LocalJob job = job_of(num_ranks, "trains",
                                  {"gloo", variant_, optimizer_of(variant_), is_noisy ? "noisy" : "quiet",
                                   std::to_string(until), load, save, result});
    job.timeout = std::chrono::seconds(120);
    expect_success(job);
    return load_safetensors(result);
  }
  std::string folder(const std::string& name) const { return folder_.file(name); }

 private:
  std::string variant_;
  TemporaryFolder folder_;
};

using Case = std::tuple<std::string, int>;

void expect_same_bits(const std::string& variant, int num_ranks) {
  const bool is_noisy = !variant.ends_with("reproducible");  // which refuses random numbers
  Jobs jobs(variant);
  const Weights expected = jobs.run(num_ranks, is_noisy, kSteps);
  const std::string folder = jobs.folder("checkpoints");
  jobs.run(num_ranks, is_noisy, kSteps / 2, kNone, folder);
  require_same_bits(jobs.run(num_ranks, is_noisy, kSteps, folder), expected, variant);
}

class ResumeProcesses : public ::testing::TestWithParam<Case> {};

TEST_P(ResumeProcesses, GoOnWithTheSameBits) { expect_same_bits(std::get<0>(GetParam()), std::get<1>(GetParam())); }

TEST_P(ResumeProcesses, GoOnWithAnotherNumberOfRanks) {
  const auto& [variant, num_ranks] = GetParam();
  Jobs jobs(variant);
  const Weights expected = jobs.run(num_ranks, false, kSteps);
  const std::string folder = jobs.folder("checkpoints");
  jobs.run(num_ranks, false, kSteps / 2, kNone, folder);
  // Round about: 1, 2, 3, 4 and 8 ranks are each gone to and come from.
  static const std::map<int, int> next{{1, 3}, {2, 8}, {3, 2}, {4, 1}, {8, 4}};
  int other = next.at(num_ranks);
  while (!fits(variant, other)) other = next.at(other);
  const Weights found = jobs.run(other, false, kSteps, folder);
  const std::string what = variant + " on " + std::to_string(other);
  if (variant.ends_with("reproducible")) {
    require_same_bits(found, expected, what);
  } else {
    require_close(found, expected, tolerance_of(variant), what);
  }
}

/// On another number of ranks these begin anew what they remember of each rank.
class ResumeHooks : public ::testing::TestWithParam<Case> {};

TEST_P(ResumeHooks, GoOnWithTheSameBits) { expect_same_bits(std::get<0>(GetParam()), std::get<1>(GetParam())); }

std::vector<Case> cases(const std::vector<std::string>& variants, const std::vector<int>& numbers) {
  std::vector<Case> list;
  for (const std::string& variant : variants) {
    for (const int num_ranks : numbers) {
      if (fits(variant, num_ranks)) list.emplace_back(variant, num_ranks);
    }
  }
  return list;
}

std::string text_of(const ::testing::TestParamInfo<Case>& info) {
  std::string text = std::get<0>(info.param) + "With" + std::to_string(std::get<1>(info.param));
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Variants, ResumeProcesses,
                         ::testing::ValuesIn(cases({"ddp", "full", "full orig", "grad_op", "zero1", "no_shard",
                                                    "hybrid", "ddp reproducible", "full reproducible", "ddp fp32",
                                                    "full fp32", "full mixed"},
                                                   {1, 2, 3, 4, 8})),
                         text_of);
INSTANTIATE_TEST_SUITE_P(Variants, ResumeHooks, ::testing::ValuesIn(cases({"ddp int8", "ddp powersgd"}, {2, 3, 4})),
                         text_of);

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv, {{"trains", tessera::testing::train}});
}
