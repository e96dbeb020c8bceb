#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/core/error.h>

#include <utility>

#include "checkpoint/load_newest.h"
#include "checkpoint/shared_folder.h"
#include "checkpoint/step_saver.h"

namespace tessera {
namespace {

void check(const CheckpointOptions& options) {
  std::string faults;
  const auto require = [&](bool holds, const std::string& fault) {
    if (!holds) faults += (faults.empty() ? "" : "; ") + fault;
  };
  require(options.keep_last() >= 0, "keep_last is " + std::to_string(options.keep_last()) + ", expected 0 or more");
  require(options.keep_every() >= 0, "keep_every is " + std::to_string(options.keep_every()) + ", expected 0 or more");
  require(options.max_file_bytes() > 0,
          "max_file_bytes is " + std::to_string(options.max_file_bytes()) + ", expected more than 0");
  require(options.patience().count() > 0, "patience must be above 0");
  require(options.progress() == "auto" || options.progress() == "off",
          "progress is \"" + options.progress() + "\", expected \"auto\" or \"off\"");
  if (!faults.empty()) throw ConfigError("checkpoint options: " + faults);
}

}  // namespace

class CheckpointFolder::State {
 public:
  State(std::filesystem::path path, const Communicator& comm, const CheckpointOptions& options)
      : folder(std::move(path), comm, options) {}

  checkpoints::SharedFolder folder;
  checkpoints::StepSaver saver{folder};
};

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, const Ranks& ranks, const CheckpointOptions& options) {
  check(options);
  state_ = std::make_unique<State>(std::move(folder), ranks.comm(), options);
}

CheckpointFolder::~CheckpointFolder() = default;

const std::filesystem::path& CheckpointFolder::folder() const { return state_->folder.path(); }

void CheckpointFolder::show_on(std::shared_ptr<observe::Terminal> terminal) {
  state_->saver.wait_for_this_rank();  // it uses the terminal that there is
  state_->folder.show_on(std::move(terminal));
}

SaveReport CheckpointFolder::save(std::int64_t step, const RankState& state) { return state_->saver.save(step, state); }

SaveReport CheckpointFolder::wait() { return state_->saver.wait(); }

std::optional<std::int64_t> CheckpointFolder::load_newest(const std::function<void(const SavedStep&)>& restore) {
  return checkpoints::load_newest(state_->folder, !state_->saver.is_idle(), restore);
}

}  // namespace tessera
