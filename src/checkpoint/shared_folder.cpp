#include "checkpoint/shared_folder.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::checkpoints {

SharedFolder::SharedFolder(std::filesystem::path path, Communicator comm, const CheckpointOptions& options)
    : path_(std::move(path)),
      comm_(std::move(comm)),
      options_(options),
      log_("checkpoint", comm_.rank()),
      files_(DiskOptions{.tell = [this](const std::string& line) { log_.info(line); }}) {
  draw_on(observe::process_terminal(leads() && options_.progress() == "auto"));
}

Communicator SharedFolder::patient() const {
  return comm_.with_timeout(std::max(comm_.timeout(), options_.patience()));
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

/// What is logged stands above what is shown.
void SharedFolder::draw_on(std::shared_ptr<observe::Terminal> terminal) {
  terminal_ = std::move(terminal);
  log_ = Logger("checkpoint", comm_.rank(), LogLevel::kInfo, observe::log_sink_above(terminal_));
}

}  // namespace tessera::checkpoints
