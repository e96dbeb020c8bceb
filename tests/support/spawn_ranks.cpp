#include "support/spawn_ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;  // NOLINT: POSIX's own name

namespace tessera::testing {
namespace {

/// A file without a name that takes a rank's output.
class OutputFile {
 public:
  OutputFile() {
    std::string path = "/tmp/tessera_test_XXXXXX";
    descriptor_ = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) throw std::runtime_error("no temporary file");
    unlink(path.c_str());
  }
  ~OutputFile() { close(descriptor_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::string text() const {
    std::string all;
    std::array<char, 4096> block{};
    off_t at = 0;
    for (ssize_t n = 0; (n = pread(descriptor_, block.data(), block.size(), at)) > 0; at += n) {
      all.append(block.data(), static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int descriptor_;
};

std::vector<std::string> environment_for(int rank, int num_ranks, int port, const SpawnOptions& options) {
  const int per_node = options.ranks_per_node > 0 ? options.ranks_per_node : num_ranks;
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables["RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = std::to_string(num_ranks);
  variables["LOCAL_RANK"] = std::to_string(rank % per_node);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(per_node);
  variables["NODE_RANK"] = std::to_string(rank / per_node);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables["OMP_NUM_THREADS"] = "1";
  for (const auto& [name, value] : options.variables) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

int start(std::vector<std::string> arguments, std::vector<std::string> environment, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  arguments.insert(arguments.begin(), own_path());
  pid_t process = 0;
  const int code = posix_spawn(&process, arguments[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                               pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw std::runtime_error("posix_spawn failed");
  return process;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

}  // namespace

std::string own_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), static_cast<std::size_t>(length)};
}

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  close(descriptor);
  return ntohs(address.sin_port);
}

std::vector<RankResult> spawn_ranks(int num_ranks, const std::vector<std::string>& arguments,
                                    const SpawnOptions& options) {
  const int port = free_port();
  std::vector<OutputFile> outputs(static_cast<std::size_t>(num_ranks));
  std::vector<int> processes;
  for (int rank = 0; rank < num_ranks; ++rank) {
    processes.push_back(start(arguments, environment_for(rank, num_ranks, port, options),
                              outputs[static_cast<std::size_t>(rank)].descriptor()));
  }
  if (options.when_started) options.when_started(processes);
  std::vector<RankResult> results(static_cast<std::size_t>(num_ranks));
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    int status = 0;
    bool killed = false;
    while (waitpid(processes[rank], &status, killed ? 0 : WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        kill(processes[rank], SIGKILL);
        killed = true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    results[rank].exit_code = exit_code_of(status);
    results[rank].output = outputs[rank].text();
  }
  return results;
}

}  // namespace tessera::testing
