#include "two_nodes.h"

#include <tessera/launch/local_job.h>
#include <tessera/store/secret.h>

#include <csignal>
#include <filesystem>
#include <fstream>

namespace tessera::testing {
namespace {

void write_key(const std::string& path) {
  std::ofstream(path) << store::Secret::mint().hex();
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
}

}  // namespace

TwoNodes::TwoNodes(const std::string& address) : endpoint_(address + ":" + std::to_string(launch::free_port())) {
  write_key(folder_.file("key"));
  write_key(folder_.file("wrong_key"));
}

std::vector<std::string> TwoNodes::options(int node, bool right_secret, int num_nodes) const {
  return {"--nnodes",        std::to_string(num_nodes),
          "--node-rank",     std::to_string(node),
          "--rdzv-endpoint", endpoint_,
          "--secret-file",   folder_.file(right_secret ? "key" : "wrong_key")};
}

std::unique_ptr<Launcher> TwoNodes::shell(int node, const std::string& script, std::vector<std::string> more,
                                          int num_ranks) const {
  auto all = options(node);
  all.insert(all.end(), more.begin(), more.end());
  return std::make_unique<Launcher>(shell_ranks(num_ranks, script, all));
}

std::unique_ptr<Launcher> TwoNodes::rank(int node, const std::vector<std::string>& words, std::vector<std::string> more,
                                         int num_ranks) const {
  auto all = options(node);
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {"--nproc-per-node", std::to_string(num_ranks), TESSERA_TEST_RANK});
  all.insert(all.end(), words.begin(), words.end());
  return std::make_unique<Launcher>(all, std::map<std::string, std::string>{{"MEETING_FOLDER", folder_.path()}});
}

void kill_both(const Launcher& launcher) {
  const pid_t supervisor = launcher.supervisor();
  stop_process(launcher.front());  // or it would see the supervisor's death
  kill(supervisor, SIGKILL);
  kill(launcher.front(), SIGKILL);
}

}  // namespace tessera::testing
