#include <tessera/comm/world.h>
#include <tessera/train/loader.h>

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "support/temporary_folder.h"
#include "train/process/roles.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kNumSamples = 96;

SamplerState load_state(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::int64_t> values;
  std::string key;
  std::int64_t value = 0;
  while (file >> key >> value) values[key] = value;
  return values.empty() ? SamplerState{11, 0, 0, kNumSamples, true} : SamplerState::from_values(values);
}

/// As a checkpoint would: complete, or not there.
void save_state(const std::string& path, const SamplerState& state) {
  std::ofstream file(path + ".new");
  for (const auto& [key, value] : state.to_values()) file << key << " " << value << "\n";
  file.close();
  std::filesystem::rename(path + ".new", path);
}

}  // namespace

/// A training loop without training. Arguments: the folder, the attempt, and the step in which the last rank is killed.
/// Each rank writes down what it sees; rank 0 saves the state when all have finished a step.
void feed(const Arguments& arguments) {
  const std::string& folder = arguments.at(0);
  const int kill_at = std::stoi(arguments.at(2));
  const World world = init(WorldOptions().backend("shm"));
  Sampler sampler(kNumSamples, world.rank(), world.size(), SamplerOptions().seed(11).global_batch(8));
  sampler.restore(load_state(folder + "/state"));
  Loader loader(sampler, [](const SampleBatch& part) { return part; });
  std::ofstream seen(folder + "/seen_" + arguments.at(1) + "_" + std::to_string(world.rank()));
  for (int step = 0; const auto batch = loader.next(); ++step) {
    for (const std::int64_t sample : batch->samples) seen << batch->first << " " << sample << std::endl;
    if (step == kill_at && world.rank() == world.size() - 1) raise(SIGKILL);
    world.comm().barrier();
    if (world.rank() == 0) save_state(folder + "/state", loader.state());
    world.comm().barrier();
  }
}

namespace {

struct Seen {
  std::map<std::int64_t, int> counts;  ///< of each sample, in steps that were saved
  int num_lost = 0;                    ///< seen in a step that was not
};

void add_seen(Seen& seen, const std::string& path, std::int64_t saved) {
  std::ifstream file(path);
  std::int64_t first = 0;
  std::int64_t sample = 0;
  while (file >> first >> sample) {
    if (first < saved) {
      ++seen.counts[sample];
    } else {
      ++seen.num_lost;
    }
  }
}

TEST(KilledRun, GoesOnWithOtherRanksAndSeesEachSampleOnce) {
  struct Attempt {
    int num_ranks;
    int kill_at;
  };
  const TemporaryFolder folder;
  Seen seen;
  int number = 0;
  for (const Attempt attempt : {Attempt{2, 3}, Attempt{8, 1}, Attempt{3, 2}, Attempt{1, 0}, Attempt{4, -1}}) {
    const std::string name = std::to_string(number++);
    const auto results = launch::run(
        job_of(attempt.num_ranks, "feeds", {folder.path().string(), name, std::to_string(attempt.kill_at)}));
    if (attempt.kill_at >= 0) {
      EXPECT_EQ(results.back().exit_code, 128 + SIGKILL) << results.back().output;
    } else {
      expect_success(results);
    }
    const SamplerState saved = load_state(folder.file("state"));
    for (int rank = 0; rank < attempt.num_ranks; ++rank) {
      add_seen(seen, folder.file("seen_" + name + "_" + std::to_string(rank)), saved.consumed);
    }
  }
  EXPECT_EQ(load_state(folder.file("state")).consumed, kNumSamples);
  ASSERT_EQ(seen.counts.size(), static_cast<std::size_t>(kNumSamples));
  for (const auto& [sample, count] : seen.counts) EXPECT_EQ(count, 1) << "sample " << sample;
  EXPECT_GT(seen.num_lost, 0) << "the kills came in the middle of a step";
}

}  // namespace
}  // namespace tessera::testing
