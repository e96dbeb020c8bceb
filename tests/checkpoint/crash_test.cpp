// A save, and every call of it in turn struck by a fault: whatever the disk holds then, each step is whole.
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>
#include <tessera/shard/slice.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/faulty_file_system.h"
#include "checkpoint/save/step_draft.h"
#include "checkpoint/step_writer.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoints::FileSystem;
using checkpoints::StepDraft;
using checkpoints::WriteRange;
using testing::Fault;
using testing::FaultyFileSystem;

const fs::path kRoot = "/runs/checkpoints";
constexpr int kNumRanks = 2;
constexpr std::uint32_t kReadBackSeed = 2;  // real files take their time

using Files = std::map<std::string, std::string>;

/// The files of a step. `version` tells a step that was saved again from the first: no tensor is the same.
Files make_files(std::int64_t step, int version) {
  const std::string tensor = "version_" + std::to_string(version);
  testing::StepWriter writer;
  writer.step = step;
  writer.num_ranks = kNumRanks;
  writer.tensors = {
      {"model", tensor, StoredDtype::kF32, {30, 75}, "model.safetensors", {{0, Slice::whole({2250})}}},
      {"optimizer", tensor, StoredDtype::kF64, {250}, "optimizer.safetensors", {{1, Slice::whole({250})}}},
  };
  writer.other_files = {{"index.json", "{\"step\": " + std::to_string(step) + "}"}};
  const testing::TemporaryFolder folder;
  Files files;
  for (const auto& entry : fs::directory_iterator(writer.write(folder.path()))) {
    files[entry.path().filename().string()] = testing::text_of_file(entry.path());
  }
  return files;
}

/// The same, made once: thousands of disks hold them.
const Files& contents(std::int64_t step, int version) {
  static std::map<std::pair<std::int64_t, int>, Files> made;
  auto& files = made[{step, version}];
  if (files.empty()) files = make_files(step, version);
  return files;
}

/// Every second piece of a file is of one rank: pieces meet inside sectors.
std::vector<WriteRange> ranges_of(int rank, std::string_view bytes, std::uint64_t head) {
  constexpr std::uint64_t kPiece = 700;
  std::vector<WriteRange> ranges;
  for (std::uint64_t begin = head; begin < bytes.size(); begin += kPiece) {
    const std::string_view piece = bytes.substr(begin, kPiece);
    if ((begin - head) / kPiece % kNumRanks == static_cast<std::uint64_t>(rank)) {
      ranges.push_back({begin, std::as_bytes(std::span(piece))});
    }
  }
  return ranges;
}

void write_rank(StepDraft& draft, int rank, const Files& files) {
  constexpr std::uint64_t kHead = 100;
  for (const auto& [name, bytes] : files) {
    if (name.ends_with(".safetensors")) draft.write(name, ranges_of(rank, bytes, kHead));
  }
  draft.publish_part(rank, "part of " + std::to_string(rank));
}

/// What two ranks do, one after the other.
void save(FileSystem& disk, std::int64_t step, int version) {
  const Files& files = contents(step, version);
  std::vector<checkpoints::DraftFile> draft_files;
  for (const auto& [name, bytes] : files) {
    if (name == "manifest.json") continue;
    draft_files.push_back({name, bytes.size(), name == "index.json" ? bytes : bytes.substr(0, 100)});
  }
  StepDraft first = StepDraft::create(disk, kRoot, step, draft_files);
  StepDraft second = StepDraft::join(disk, kRoot, step);
  write_rank(second, 1, files);
  write_rank(first, 0, files);
  const auto parts = first.await_parts(kNumRanks, std::chrono::seconds(5));
  if (parts != std::vector<std::string>{"part of 0", "part of 1"}) throw InternalError("other parts");
  first.commit(files.at("manifest.json"));
}

/// By step, what the disk holds: the version of a step that is whole, none of one that is not.
std::map<std::int64_t, std::optional<int>> steps_seen(const FaultyFileSystem& disk) {
  const std::string start = kRoot.string() + "/step-";
  std::map<std::int64_t, Files> found;
  for (const auto& [path, bytes] : disk.seen()) {
    if (!path.starts_with(start)) continue;
    const std::size_t slash = path.find('/', start.size());
    auto& files = found[std::stoll(path.substr(start.size()))];
    if (slash + 1 < path.size()) files[path.substr(slash + 1)] = bytes;
  }
  std::map<std::int64_t, std::optional<int>> steps;
  for (const auto& [step, files] : found) {
    steps[step] = std::nullopt;
    for (const int version : {1, 2}) {
      if (files == contents(step, version)) steps[step] = version;
    }
  }
  return steps;
}

/// What the reader says to the same disk: it must find the newest step whole. Empty: it does.
std::string read_back(const FaultyFileSystem& disk) {
  const testing::TemporaryFolder folder;
  disk.write_seen(folder.path());
  std::vector<std::string> skipped;
  const auto newest = newest_intact(folder.path() / kRoot.relative_path(), true, skipped);
  const auto steps = steps_seen(disk);
  if (!skipped.empty()) return skipped.front();
  const auto expected = steps.empty() ? std::nullopt : std::optional(steps.rbegin()->first);
  return newest == expected ? "" : "the reader finds another newest step";
}

using Preparation = std::function<void(FaultyFileSystem&)>;

struct Scenario {
  std::string name;
  std::function<void(FileSystem&)> before;
  std::function<void(FileSystem&)> struck;
  std::set<std::int64_t> always;  // these steps are there whatever happens
};

std::vector<Scenario> scenarios() {
  const auto save_10 = [](FileSystem& disk) { save(disk, 10, 1); };
  const auto save_20 = [](FileSystem& disk) { save(disk, 20, 1); };
  return {
      {"the first step", [](FileSystem&) {}, save_10, {}},
      {"another step", save_10, save_20, {10}},
      {"a step that exists",
       [=](FileSystem& disk) { save_10(disk), save_20(disk); },
       [](FileSystem& disk) { save(disk, 20, 2); },
       {10, 20}},
      {"a step, and the removal of an older one",
       [=](FileSystem& disk) { save(disk, 5, 1), save_10(disk); },
       [=](FileSystem& disk) {
         save_20(disk);
         checkpoints::remove_step(disk, kRoot, 5);
       },
       {10}},
  };
}

/// Runs the scenario with the fault. What is wrong then; empty: nothing.
std::string strike(const Scenario& scenario, Fault fault, int call, std::uint32_t seed,
                   const Preparation& prepare = nullptr) {
  FaultyFileSystem disk(seed);
  scenario.before(disk);
  if (prepare) prepare(disk);
  disk.arm(fault, call);
  try {
    scenario.struck(disk);
  } catch (const testing::PowerCut&) {
    if (fault != Fault::kPowerCut) return "the power went by itself";
  } catch (const StorageError& error) {
    if (!std::string(error.what()).starts_with("/")) return "the error names no path";
  }
  const std::string when = scenario.name + ", call " + std::to_string(call) + " (" + disk.struck() + "), seed " +
                           std::to_string(seed) + ": ";
  const auto check = [&](const std::string& state) -> std::string {
    const auto steps = steps_seen(disk);
    for (const auto& [step, version] : steps) {
      if (!version) return when + "step " + std::to_string(step) + " is not whole " + state;
    }
    for (const std::int64_t step : scenario.always) {
      if (!steps.contains(step)) return when + "step " + std::to_string(step) + " is lost " + state;
    }
    const std::string unreadable = seed == kReadBackSeed && call % 4 == 0 ? read_back(disk) : "";
    return unreadable.empty() ? "" : when + unreadable;
  };
  disk.arm(Fault::kNone, 0);
  if (fault != Fault::kPowerCut) {
    finish_exchanges(disk, kRoot);
    // Training goes on, and saves again. Whatever failed before must not take that along.
    if (const std::string wrong = check("while the system runs"); !wrong.empty()) return wrong;
    save(disk, 30, 1);
    disk.restart(seed * 31 + 7);
    if (!steps_seen(disk).contains(30)) return when + "step 30, saved after it, is lost";
    return check("after a restart");
  }
  disk.restart(seed * 31 + 7);
  finish_exchanges(disk, kRoot);
  if (const std::string wrong = check("after a restart"); !wrong.empty()) return wrong;
  // The next run begins where this one ended.
  remove_leftovers(disk, kRoot);
  save(disk, 30, 1);
  if (!steps_seen(disk).contains(30)) return when + "the next run cannot save";
  return check("at the end");
}

int num_calls_of(const Scenario& scenario, const Preparation& prepare = nullptr) {
  FaultyFileSystem disk(0);
  scenario.before(disk);
  if (prepare) prepare(disk);
  disk.arm(Fault::kNone, 0);
  scenario.struck(disk);
  return disk.num_calls();
}

class Crash : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Crash, AtAnyCallLeavesWholeSteps) {
  const Scenario scenario = scenarios().at(GetParam());
  const int num_calls = num_calls_of(scenario);
  ASSERT_GT(num_calls, 30);
  for (int call = 1; call <= num_calls; ++call) {
    for (std::uint32_t seed = 1; seed <= 12; ++seed) {
      ASSERT_EQ(strike(scenario, Fault::kPowerCut, call, seed), "");
    }
    for (std::uint32_t seed = 1; seed <= 4; ++seed) {
      ASSERT_EQ(strike(scenario, Fault::kNoSpace, call, seed), "");
      ASSERT_EQ(strike(scenario, Fault::kInputOutput, call, seed), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WhileSaving, Crash, ::testing::Range(std::size_t{0}, scenarios().size()));

TEST(Crash, WhereAnExchangeTakesTwoRenamesLosesNoStep) {
  const Scenario scenario = scenarios().at(2);
  const Preparation prepare = [](FaultyFileSystem& disk) { disk.exchange_in_two(true); };
  const int num_calls = num_calls_of(scenario, prepare);
  for (int call = 1; call <= num_calls; ++call) {
    for (std::uint32_t seed = 1; seed <= 12; ++seed) {
      for (const Fault fault : {Fault::kPowerCut, Fault::kNoSpace, Fault::kInputOutput}) {
        ASSERT_EQ(strike(scenario, fault, call, seed, prepare), "");
      }
    }
  }
}

/// Whether any call and seed shows that something is wrong.
bool is_found(const Scenario& scenario, const Preparation& prepare) {
  const int num_calls = num_calls_of(scenario);
  for (int call = 1; call <= num_calls + 1; ++call) {
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      if (!strike(scenario, Fault::kPowerCut, call, seed, prepare).empty()) return true;
    }
  }
  return false;
}

TEST(FaultyFileSystem, FindsASaveThatDoesNotBringItsFilesToTheDisk) {
  EXPECT_TRUE(is_found(scenarios().at(1), [](FaultyFileSystem& disk) { disk.ignore_file_syncs(true); }));
}

TEST(FaultyFileSystem, FindsASaveThatDoesNotBringItsNamesToTheDisk) {
  EXPECT_TRUE(is_found(scenarios().at(1), [](FaultyFileSystem& disk) { disk.ignore_folder_syncs(true); }));
  EXPECT_TRUE(is_found(scenarios().at(3), [](FaultyFileSystem& disk) { disk.ignore_folder_syncs(true); }));
}

TEST(FaultyFileSystem, FindsARemovalOfAStepThatKeepsItsName) {
  Scenario scenario = scenarios().at(3);
  scenario.struck = [](FileSystem& disk) { disk.remove_folder(kRoot / "step-00000005"); };
  EXPECT_TRUE(is_found(scenario, nullptr));
}

TEST(FaultyFileSystem, MovesAsideWhatItCannotExchange) {
  FaultyFileSystem disk(0);
  save(disk, 10, 1);
  save(disk, 20, 1);
  disk.exchange_in_two(true);
  disk.exchange(kRoot / "step-00000010", kRoot / "step-00000020", kRoot / "aside");
  EXPECT_EQ(disk.list(kRoot), (std::vector<std::string>{"aside", "step-00000020"}));
}

TEST(FaultyFileSystem, KeepsWhatIsSafe) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    FaultyFileSystem disk(seed);
    save(disk, 10, 1);
    // The folders above are made by the save too.
    disk.restart(seed);
    EXPECT_EQ(steps_seen(disk), (std::map<std::int64_t, std::optional<int>>{{10, 1}}));
  }
}

}  // namespace
}  // namespace tessera
