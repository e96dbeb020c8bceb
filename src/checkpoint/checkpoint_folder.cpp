#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checkpoint/load/load_newest.h"
#include "checkpoint/save/step_saver.h"

namespace tessera::checkpoints {

SharedFolder::SharedFolder(std::filesystem::path path, Communicator comm, const CheckpointOptions& options)
    : path_(std::move(path)),
      comm_(std::move(comm)),
      options_(options),
      log_("checkpoint", comm_.rank()),
      files_(DiskOptions{.tell = [this](const std::string& line) { log_.info(line); }}) {
  draw_on(observe::process_terminal(leads() && options_.progress() == "auto"));
}

Communicator SharedFolder::comm_for_long_waits() const {
  return comm_.with_timeout(std::max(comm_.timeout(), options_.peer_timeout()));
}

observe::TransferLine SharedFolder::line_of(const char* verb, std::int64_t step,
                                            std::shared_ptr<const ByteCount> count) const {
  std::string title = verb + (" step " + std::to_string(step));
  if (comm_.size() > 1) title += ", rank 0 of " + std::to_string(comm_.size());
  return {terminal_, title, std::move(count)};
}

void SharedFolder::show_on(std::shared_ptr<observe::Terminal> terminal) {
  if (options_.progress() == "auto") draw_on(std::move(terminal));
}

/// Log lines appear above the progress line.
void SharedFolder::draw_on(std::shared_ptr<observe::Terminal> terminal) {
  terminal_ = std::move(terminal);
  log_ = Logger("checkpoint", comm_.rank(), LogLevel::kInfo, observe::log_sink_above(terminal_));
}

}  // namespace tessera::checkpoints

namespace tessera {

const FieldList<CheckpointOptions>& CheckpointOptions::fields() {
  static const FieldList<CheckpointOptions> list =
      FieldList<CheckpointOptions>("checkpoint")
          .add("keep_last", &CheckpointOptions::keep_last_, "How many of the newest steps stay; 0: all.")
          .add("keep_every", &CheckpointOptions::keep_every_,
               "Steps whose number is a multiple of it stay for good; 0: none.")
          .add("asynchronous", &CheckpointOptions::asynchronous_,
               "Train on while the disk is written; costs memory for up to two copies of what a rank writes.")
          .add("max_file_bytes", &CheckpointOptions::max_file_bytes_,
               "Tensors of more bytes than this are spread over several files with an index.")
          .add("peer_timeout", &CheckpointOptions::peer_timeout_,
               "How long ranks wait for each other when they have written or loaded their part.")
          .add_choice("progress", &CheckpointOptions::progress_, {"auto", "off"},
                      "auto: on a terminal, a line that shows how far a save or a load is.");
  return list;
}

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
  require(options.peer_timeout().count() > 0, "peer_timeout must be above 0");
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
  state_->saver.wait_for_this_rank();  // a save under way uses the present terminal
  state_->folder.show_on(std::move(terminal));
}

SaveReport CheckpointFolder::save(std::int64_t step, const RankState& state) { return state_->saver.save(step, state); }

SaveReport CheckpointFolder::wait() { return state_->saver.wait(); }

std::optional<std::int64_t> CheckpointFolder::load_newest(const std::function<void(const SavedStep&)>& restore) {
  return checkpoints::load_newest(state_->folder, !state_->saver.is_idle(), restore);
}

}  // namespace tessera
