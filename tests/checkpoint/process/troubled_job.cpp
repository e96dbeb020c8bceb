// The job of disk_trouble_test.cpp.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/world.h>

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "checkpoint/process/numbered_state.h"
#include "checkpoint/process/own_disk.h"
#include "checkpoint/process/roles.h"
#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kDiskBytes = 40U << 20;  // of several steps
constexpr std::uint64_t kPage = 4096;
constexpr std::chrono::seconds kMostOfASave{10};

class TroubledRank {
 public:
  TroubledRank(const World& world, fs::path disk, bool asynchronous)
      : world_(world),
        disk_(std::move(disk)),
        checkpoints_(disk_ / "run" / "checkpoints", world, CheckpointOptions().keep_last(2).asynchronous(asynchronous)),
        weights_(at::zeros({100}, at::kDouble)) {}

  /// A step of the training, then a save of it. Whether it was saved, and why not, within the time of a save.
  SaveReport train_and_save() {
    at::Tensor gradient = at::full({100}, static_cast<double>(world_.rank()), at::kDouble);
    world_.comm().all_reduce(gradient);
    weights_ += gradient;
    ++step_;
    const auto began = std::chrono::steady_clock::now();
    SaveReport report = checkpoints_.save(step_, numbered_state(world_, step_, 1));
    if (report.under_way) report = checkpoints_.wait();
    require(std::chrono::steady_clock::now() - began < kMostOfASave, "the save took its time");
    require(report.saved == report.error.empty() && !report.under_way, "a report that is no report");
    return report;
  }

  void save_well() {
    const SaveReport report = train_and_save();
    require(report.saved, "not saved: " + report.error);
    require_newest(step_);
  }

  void fail_to_save(std::initializer_list<const char*> parts) {
    const SaveReport report = train_and_save();
    require(!report.saved, "saved, on that disk");
    for (const char* part : parts) require(report.error.find(part) != std::string::npos, "said: " + report.error);
  }

  /// Also that nothing else is left there.
  void require_newest(std::int64_t expected) {
    const auto step = checkpoints_.load_newest([](const SavedStep& saved) {
      const std::string faults = faults_of(saved);
      require(faults.empty(), faults);
    });
    require_equal(step, expected, "another step is the newest");
    for (const auto& entry : fs::directory_iterator(root())) {
      require(!entry.path().filename().string().starts_with('.'), "left behind: " + entry.path().string());
    }
    world_.comm().barrier();
  }

  /// What rank 0 does, while the others wait.
  void alone(const std::function<void()>& action) {
    world_.comm().barrier();
    if (leads()) action();
    world_.comm().barrier();
  }

  void require_trained() const {
    const double expected = static_cast<double>(step_ * world_.size() * (world_.size() - 1)) / 2;
    require_equal(weights_, at::full({100}, expected, at::kDouble), "training did not go on");
  }

  bool leads() const { return world_.rank() == 0; }
  std::int64_t step() const { return step_; }
  const fs::path& disk() const { return disk_; }
  const fs::path& root() const { return checkpoints_.folder(); }

 private:
  World world_;
  fs::path disk_;
  CheckpointFolder checkpoints_;
  at::Tensor weights_;
  std::int64_t step_ = 0;
};

void meet_a_full_disk(TroubledRank& rank) {
  std::unique_ptr<Ballast> ballast;
  rank.alone([&] { ballast = std::make_unique<Ballast>(rank.disk(), 1U << 20); });
  for (int i = 0; i < 3; ++i) {
    rank.fail_to_save(
        {"rank 0", "model.safetensors", "No space left", "bytes are needed and", "are free", "Free some"});
    rank.require_newest(1);
  }
  rank.alone([&] { ballast.reset(); });
}

/// Whatever it is that the last page is missing for: a tensor file, a part, the manifest.
void meet_a_nearly_full_disk(TroubledRank& rank) {
  std::uint64_t num_bytes = 0;
  for (const auto& entry : fs::directory_iterator(rank.root() / step_folder_name(1))) num_bytes += entry.file_size();
  std::int64_t newest = 1;
  int num_failed = 0;
  constexpr std::uint64_t kMargin = 7;
  const std::uint64_t first = num_bytes / kPage - kMargin;
  for (std::uint64_t pages = first; pages <= first + 2 * kMargin; ++pages) {
    std::unique_ptr<Ballast> ballast;
    rank.alone([&] { ballast = std::make_unique<Ballast>(rank.disk(), pages * kPage); });
    const SaveReport report = rank.train_and_save();
    rank.alone([&] { ballast.reset(); });
    if (report.saved) newest = rank.step();
    if (!report.saved) ++num_failed;
    require(report.saved || report.error.find("No space left") != std::string::npos, "said: " + report.error);
    rank.require_newest(newest);
  }
  require(num_failed > 0 && newest == rank.step(), "some fail, and the last does not");
}

void meet_a_read_only_disk(TroubledRank& rank) {
  rank.alone([&] { make_read_only(rank.disk(), true); });
  rank.fail_to_save({"rank 0", ".saving", "Read-only", "Mount it for writing"});
  rank.require_newest(1);
  rank.alone([&] { make_read_only(rank.disk(), false); });
}

void meet_a_vanished_folder(TroubledRank& rank) {
  rank.alone([&] { fs::remove_all(rank.disk() / "run"); });
}

/// Until a rank has reported to rank 0, in the folder of a draft, that its part is written.
void await_a_part(const fs::path& draft, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(draft, missing)) {
      if (entry.path().filename().string().find("part-") != std::string::npos) return;
    }
  }
}

/// While it is saved into. A save may be faster than that.
void meet_a_vanishing_folder(TroubledRank& rank) {
  for (int i = 0; i < 20; ++i) {
    std::jthread vanishing;
    if (rank.leads()) {
      const fs::path draft = rank.root() / ("." + step_folder_name(rank.step() + 1) + ".saving");
      vanishing = std::jthread([&, draft](const std::stop_token& stop) {
        await_a_part(draft, stop);
        fs::rename(rank.disk() / "run", rank.disk() / "gone");
      });
    }
    const SaveReport report = rank.train_and_save();
    vanishing = {};
    rank.alone([&] { fs::remove_all(rank.disk() / "gone"); });
    if (report.saved) continue;
    require(report.error.find("Somebody removed the folder") != std::string::npos, "said: " + report.error);
    return;
  }
  throw std::runtime_error("each of twenty saves was faster than a rename");
}

}  // namespace

void run_on_own_disk(const Arguments& arguments) {
  mount_own_disk(arguments.at(0), kDiskBytes);
  bool is_well = true;
  for (const launch::RankResult& result : launch::run(job_of(2, "trains in trouble", arguments))) {
    std::printf("%s\n", result.output.c_str());
    is_well = is_well && result.exit_code == 0;
  }
  require(is_well, "a rank ended with a fault");
}

void train_in_trouble(const Arguments& arguments) {
  static const std::map<std::string, std::function<void(TroubledRank&)>> troubles{
      {"full", meet_a_full_disk},
      {"nearly_full", meet_a_nearly_full_disk},
      {"read_only", meet_a_read_only_disk},
      {"vanished", meet_a_vanished_folder},
      {"vanishing", meet_a_vanishing_folder}};
  const World world = init(WorldOptions().backend("gloo"));
  TroubledRank rank(world, arguments.at(0), arguments.at(2) == "asynchronous");
  rank.save_well();
  troubles.at(arguments.at(1))(rank);
  rank.save_well();
  rank.require_trained();
}

}  // namespace tessera::testing
