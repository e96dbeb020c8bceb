#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/safetensors_folder.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/shard/partition.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "observe/terminal.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/require_tensors.h"
#include "support/screen.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::require;
using testing::require_equal;
using testing::TemporaryFolder;

constexpr std::int64_t kRows = 37;
constexpr std::int64_t kColumns = 113;
constexpr std::int64_t kElements = kRows * kColumns;

at::Tensor reference(double offset) {
  return (at::arange(kElements, at::kDouble) * 0.5 + offset).view({kRows, kColumns});
}

/// A rank's extent of a sharded tensor, and a tensor that every rank holds.
RankState state_of(const World& world, double offset) {
  const Range range = Partition(kElements, world.size()).of(world.rank());
  RankState state;
  state.slices.push_back({{"sharded", Slice::extent({kRows, kColumns}, range),
                           reference(offset).view({-1}).narrow(0, range.start, range.size).clone()},
                          "model"});
  state.slices.push_back(whole_slice("model", "whole", at::full({3}, offset, at::kFloat)));
  state.values["step"] = static_cast<std::int64_t>(offset);
  state.values["rank/" + std::to_string(world.rank())] = std::string("mine");
  return state;
}

/// Loads into zeros and compares.
void expect_loads(const World& world, const SavedStep& step, double offset) {
  RankState into = state_of(world, 0);
  for (HeldSlice& slice : into.slices) slice.values.zero_();
  read_slices(step, into.slices);
  const RankState expected = state_of(world, offset);
  for (std::size_t i = 0; i < into.slices.size(); ++i) {
    require_equal(into.slices[i].values, expected.slices[i].values, into.slices[i].name + " differs");
  }
}

void save_and_expect(const World& world, CheckpointFolder& folder, std::int64_t step) {
  const auto report = folder.save(step, state_of(world, static_cast<double>(step)));
  require(report.saved && report.error.empty(), "not saved: " + report.error);
  require_equal(report.step, step, "the step that is saved");
}

/// What `num_ranks` of a run leave, one step after the other.
void save_steps(const TemporaryFolder& folder, int num_ranks, const std::vector<std::int64_t>& steps,
                const CheckpointOptions& options = {}) {
  run_threads(num_ranks, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world, options);
    for (const std::int64_t step : steps) save_and_expect(world, checkpoints, step);
  });
}

void damage(const TemporaryFolder& folder, std::int64_t step) {
  testing::flip_a_bit(folder.path() / step_folder_name(step) / "model.safetensors", -9);
}

/// Which step it was; its elements are as they were saved.
std::optional<std::int64_t> load_newest(const World& world, CheckpointFolder& checkpoints) {
  return checkpoints.load_newest(
      [&](const SavedStep& saved) { expect_loads(world, saved, static_cast<double>(saved.manifest().step)); });
}

TEST(CheckpointFolder, LoadsOnAnyNumberOfRanks) {
  for (const int savers : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    save_steps(folder, savers, {20});
    for (const int loaders : {1, 2, 3, 8}) {
      run_threads(loaders, [&](const World& world) {
        CheckpointFolder checkpoints(folder.path(), world);
        require_equal(load_newest(world, checkpoints), 20, "no step 20");
      });
    }
  }
}

TEST(CheckpointFolder, KeepsTheValuesOfAllRanks) {
  const TemporaryFolder folder;
  save_steps(folder, 2, {7});
  const SavedStep step(folder.path() / step_folder_name(7));
  EXPECT_EQ(std::get<std::int64_t>(step.manifest().values.at("step")), 7);
  EXPECT_EQ(std::get<std::string>(step.manifest().values.at("rank/1")), "mine");
  EXPECT_TRUE(step.verify().empty());
}

TEST(CheckpointFolder, IsReadByWhateverReadsSafetensors) {
  const TemporaryFolder folder;
  save_steps(folder, 3, {1}, CheckpointOptions().max_file_bytes(20000));
  const SafetensorsFolder tensors(folder.path() / step_folder_name(1));
  EXPECT_TRUE(at::equal(tensors.read("sharded"), reference(1)));
}

TEST(CheckpointFolder, TrainsOnWhileTheDiskIsWritten) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    for (std::int64_t step = 1; step <= 5; ++step) {
      RankState state = state_of(world, static_cast<double>(step));
      require(checkpoints.save(step, state).under_way, "not under way");
      for (HeldSlice& slice : state.slices) slice.values.fill_(-1);  // the next update
    }
    const auto report = checkpoints.wait();
    require(report.saved, "the last is not saved: " + report.error);
    require_equal(report.step, 5, "the last step");
    for (std::int64_t step = 1; step <= 5; ++step) {
      expect_loads(world, SavedStep(folder.path() / step_folder_name(step)), static_cast<double>(step));
    }
  });
}

TEST(CheckpointFolder, SavesAStepAgainThatIsStillUnderWay) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    for (int version = 1; version <= 5; ++version) checkpoints.save(7, state_of(world, version));
    const auto report = checkpoints.wait();
    require(report.saved && report.error.empty(), "not saved: " + report.error);
    expect_loads(world, SavedStep(folder.path() / step_folder_name(7)), 5);
  });
  EXPECT_EQ(list_steps(folder.path()), std::vector<std::int64_t>{7});
}

TEST(CheckpointFolder, KeepsTheLastAndEveryFewSteps) {
  const TemporaryFolder folder;
  save_steps(folder, 2, {5, 10, 15, 20, 25, 30, 35}, CheckpointOptions().keep_last(2).keep_every(10));
  EXPECT_EQ(list_steps(folder.path()), (std::vector<std::int64_t>{10, 20, 30, 35}));
}

TEST(CheckpointFolder, PassesOverADamagedStep) {
  const TemporaryFolder folder;
  save_steps(folder, 2, {10, 20});
  damage(folder, 20);
  run_threads(3, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    require_equal(load_newest(world, checkpoints), 10, "did not fall back to step 10");
    save_and_expect(world, checkpoints, 20);  // in the place of the damaged one
    require_equal(load_newest(world, checkpoints), 20, "no 20");
  });
  damage(folder, 20);
  damage(folder, 10);
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    const auto text = message_of<StorageError>([&] { load_newest(world, checkpoints); });
    expect_parts(text, {"step-00000020", "step-00000010", "no step", "intact", "whole"});
  });
}

TEST(CheckpointFolder, KeepsWhatItSavesBeforeADamagedStep) {
  const TemporaryFolder folder;
  save_steps(folder, 2, {10, 20});
  damage(folder, 20);
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().keep_last(1));
    require_equal(load_newest(world, checkpoints), 10, "another step than 10");
    for (const std::int64_t step : {15, 20}) {
      save_and_expect(world, checkpoints, step);
      require_equal(load_newest(world, checkpoints), step, "another step than " + std::to_string(step));
    }
  });
  EXPECT_EQ(list_steps(folder.path()), std::vector<std::int64_t>{20});
}

TEST(CheckpointFolder, TellsAllRanksThatItCannotBeListed) {
  const TemporaryFolder folder;
  const auto place = folder.path() / "checkpoints";
  std::ofstream(place) << "a file where the folder should be";
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(place, world);
    expect_parts(message_of<StorageError>([&] { checkpoints.load_newest([](const SavedStep&) {}); }),
                 {"rank 0", place.string(), "cannot be listed"});
  });
}

TEST(CheckpointFolder, HasNoneToLoadAtTheFirstStart) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path() / "not" / "yet", world);
    require(!checkpoints.load_newest([](const SavedStep&) {}).has_value(), "a step from nowhere");
  });
}

// A disk may keep one rank much longer than a message may take.
TEST(CheckpointFolder, WaitsForASlowRank) {
  const TemporaryFolder folder;
  constexpr auto kTimeout = std::chrono::milliseconds(300);
  constexpr auto kLonger = kTimeout + kTimeout / 2;
  run_threads(
      2,
      [&](const World& world) {
        CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
        checkpoints.save(20, state_of(world, 20));
        if (world.rank() == 0) std::this_thread::sleep_for(kLonger);
        require(checkpoints.wait().saved, "not saved");
        checkpoints.load_newest([&](const SavedStep& step) {
          if (world.rank() == 1) std::this_thread::sleep_for(kLonger);
          expect_loads(world, step, 20);
        });
      },
      WorldOptions().timeout(kTimeout));
}

TEST(CheckpointFolder, ShowsHowFarALoadIs) {
  const TemporaryFolder folder;
  testing::Screen screen(80);
  const auto terminal = std::make_shared<observe::Terminal>(observe::Terminal::Kind::kOwn, screen.duplicate());
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    if (world.rank() == 0) checkpoints.show_on(terminal);
    save_and_expect(world, checkpoints, 20);
    checkpoints.load_newest([&](const SavedStep& saved) {
      expect_loads(world, saved, 20);
      if (world.rank() > 0) return;
      require(screen.comes_to_show("loading step 20, rank 0 of 2: 0 of 0 MB, "), screen.lines().back());
    });
  });
  EXPECT_EQ(screen.lines(), std::vector<std::string>{""});
}

TEST(CheckpointFolder, AFailingDiskDoesNotEndTraining) {
  const TemporaryFolder folder;
  const auto place = folder.path() / "checkpoints";
  std::ofstream(place) << "a file where the folder should be";
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(place, world);
    const auto report = checkpoints.save(1, state_of(world, 1));
    require(!report.saved && report.error.find(place.string()) != std::string::npos, "no error: " + report.error);
    world.comm().barrier();
    if (world.rank() == 0) std::filesystem::remove(place);
    world.comm().barrier();
    save_and_expect(world, checkpoints, 2);
  });
}

TEST(CheckpointFolder, LeavesNothingOfASaveThatFailed) {
  const TemporaryFolder folder;
  const auto left = folder.path() / ".step-00000009.saving";
  std::filesystem::create_directories(left);
  std::ofstream(left / "model.safetensors") << "half";
  save_steps(folder, 2, {10});
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(CheckpointFolder, RefusesRanksThatDoNotFitTogether) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    RankState state = state_of(world, 1);
    state.values["own"] = static_cast<std::int64_t>(world.rank());
    expect_parts(message_of<ConfigError>([&] { checkpoints.save(1, state); }), {"\"own\"", "rank 1"});
    state = state_of(world, 1);
    if (world.rank() == 1) state.slices[0].values = at::zeros({2}, at::kDouble);
    expect_parts(message_of<ConfigError>([&] { checkpoints.save(1, state); }), {"rank 1", "\"sharded\""});
    save_and_expect(world, checkpoints, 2);
  });
}

TEST(ReadSlices, TellsWhatDoesNotFit) {
  const TemporaryFolder folder;
  run_threads(1, [&](const World& world) {
    CheckpointFolder checkpoints(folder.path(), world);
    save_and_expect(world, checkpoints, 1);
    const SavedStep step(folder.path() / step_folder_name(1));
    RankState state = state_of(world, 0);
    state.slices[1].name = "other";
    expect_parts(message_of<ConfigError>([&] { read_slices(step, state.slices); }), {"\"other\"", "not there"});
    state = state_of(world, 0);
    state.slices[0].slice = Slice::whole({kColumns, kRows});
    expect_parts(message_of<ConfigError>([&] { read_slices(step, state.slices); }),
                 {"\"sharded\"", "F64 [37, 113]", "F64 [113, 37]"});
  });
}

}  // namespace
}  // namespace tessera
