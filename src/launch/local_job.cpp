#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

extern char** environ;  // NOLINT: POSIX's own name

namespace tessera::launch {
namespace {

/// A file without a name that takes a rank's output.
class OutputFile {
 public:
  OutputFile() {
    std::string path = "/tmp/tessera_test_XXXXXX";
    descriptor_ = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) throw StorageError("no temporary file can be made in /tmp");
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

std::vector<std::string> environment_for(const LocalJob& job, int rank, int port) {
  const int per_node = job.ranks_per_node > 0 ? job.ranks_per_node : job.num_ranks;
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (job.launcher_variables) {
    variables["RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = std::to_string(job.num_ranks);
    variables["LOCAL_RANK"] = std::to_string(rank % per_node);
    variables["LOCAL_WORLD_SIZE"] = std::to_string(per_node);
    variables["NODE_RANK"] = std::to_string(rank / per_node);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(port);
    variables.try_emplace("OMP_NUM_THREADS", "1");
  }
  for (const auto& [name, value] : job.variables) variables[name] = value;
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
  pid_t process = 0;
  const int code = posix_spawnp(&process, arguments[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw ConfigError("the program " + arguments[0] + " cannot be started: " + std::strerror(code));
  return process;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// Blocks: until the process has ended, which it is made to after the deadline.
int wait_for(int process, std::chrono::steady_clock::time_point deadline) {
  int status = 0;
  bool killed = false;
  while (waitpid(process, &status, killed ? 0 : WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(process, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return exit_code_of(status);
}

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
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(descriptor);
  if (!bound) throw CommError("no port of the loopback interface can be bound");
  return ntohs(address.sin_port);
}

std::vector<RankResult> run(const LocalJob& job) {
  const int port = free_port();
  std::vector<OutputFile> outputs(static_cast<std::size_t>(job.num_ranks));
  std::vector<int> processes;
  for (int rank = 0; rank < job.num_ranks; ++rank) {
    processes.push_back(
        start(job.command, environment_for(job, rank, port), outputs[static_cast<std::size_t>(rank)].descriptor()));
  }
  if (job.when_started) job.when_started(processes);
  std::vector<RankResult> results(static_cast<std::size_t>(job.num_ranks));
  const auto deadline = std::chrono::steady_clock::now() + job.timeout;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    results[rank].exit_code = wait_for(processes[rank], deadline);
    results[rank].output = outputs[rank].text();
  }
  return results;
}

}  // namespace tessera::launch
