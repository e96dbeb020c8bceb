// A rank of the job that kill_test.cpp kills.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/world.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <string>

#include "checkpoint/process/numbered_state.h"
#include "checkpoint/process/rank_link.h"
#include "checkpoint/process/refused_call.h"
#include "checkpoint/process/roles.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kMaxSteps = 500;  // long after the last moment

class KilledRank {
 public:
  KilledRank(const World& world, const std::filesystem::path& root, const std::filesystem::path& socket,
             bool asynchronous)
      : world_(world),
        link_(socket, world.rank()),
        checkpoints_(root, world, CheckpointOptions().keep_last(2).asynchronous(asynchronous)),
        asynchronous_(asynchronous) {}

  std::int64_t load() {
    SavedVersion loaded;
    checkpoints_.load_newest([&](const SavedStep& saved) {
      const std::string faults = faults_of(saved);
      require(faults.empty(), "what was loaded: " + faults);
      loaded = {saved.manifest().step, version_of(saved)};
    });
    tell(RankNote::Kind::kLoaded, loaded);
    return loaded.step;
  }

  void save(std::int64_t step, std::int64_t version) {
    at::Tensor sum = at::ones({1000});  // the training: what a save in the background must not get in the way of
    world_.comm().all_reduce(sum);
    const SaveReport report = checkpoints_.save(step, numbered_state(world_, step, version));
    if (!asynchronous_) return settled({step, version}, report);
    if (++num_under_way_ % 4 == 0) settled({step, version}, checkpoints_.wait());
  }

 private:
  void settled(SavedVersion saved, const SaveReport& report) {
    require(report.saved, report.error);
    tell(RankNote::Kind::kSaved, saved);
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints_.folder())) {
      require(!entry.path().filename().string().starts_with('.'), "left behind: " + entry.path().string());
    }
    world_.comm().barrier();  // the next save begins when all have looked
  }

  void tell(RankNote::Kind kind, SavedVersion saved) const {
    if (world_.rank() == 0) link_.tell(kind, saved);
  }

  World world_;
  RankLink link_;
  CheckpointFolder checkpoints_;
  bool asynchronous_;
  int num_under_way_ = 0;
};

}  // namespace

void save_until_killed(const Arguments& arguments) {
  const World world = init(WorldOptions().backend("gloo"));
  world.comm().barrier();  // connected, before calls are watched
  if (arguments.size() > 3) refuse_call(arguments.at(3));
  KilledRank rank(world, arguments.at(0), arguments.at(1), arguments.at(2) == "asynchronous");
  const std::int64_t begin = rank.load() + 1;
  for (std::int64_t step = begin; step < begin + kMaxSteps; ++step) {
    rank.save(step, 1);
    if (step % kTwiceEvery == 0) rank.save(step, 2);
  }
}

}  // namespace tessera::testing
