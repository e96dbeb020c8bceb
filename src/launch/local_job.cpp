#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "launch/job_store.h"
#include "launch/process.h"

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

std::vector<std::string> environment_for(const LocalJob& job, int rank, const RendezvousPort& port) {
  const int per_node = job.ranks_per_node > 0 ? job.ranks_per_node : job.num_ranks;
  Environment environment = current_environment();
  if (job.launcher_variables) {
    RankPlace place;
    place.rank = rank;
    place.local_rank = rank % per_node;
    place.node_rank = rank / per_node;
    place.world_size = job.num_ranks;
    place.local_world_size = per_node;
    place.master_address = port.address();
    place.master_port = port.port();
    set_place(environment, place);
    environment.try_emplace("OMP_NUM_THREADS", "1");
  }
  for (const auto& [name, value] : job.variables) environment[name] = value;
  return entries_of(environment);
}

int start(const LocalJob& job, int rank, const RendezvousPort& port, int output) {
  const ProgramPath program = find_program(job.command.at(0));
  if (program.path.empty()) throw ConfigError(program.fault);
  ProcessSpec spec;
  spec.program = program.path;
  spec.arguments = job.command;
  spec.environment = environment_for(job, rank, port);
  spec.output = output;
  spec.error = output;
  const Started started = start_process(spec);
  if (started.fault != 0) {
    throw ConfigError("the program " + program.path + " cannot be started: " + std::strerror(started.fault));
  }
  return started.process;
}

/// Blocks: until the process has ended. Kills it after the deadline.
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

int free_port() { return RendezvousPort().port(); }

std::vector<RankResult> run(const LocalJob& job) {
  const RendezvousPort port;
  std::vector<OutputFile> outputs(static_cast<std::size_t>(job.num_ranks));
  std::vector<int> processes;
  for (int rank = 0; rank < job.num_ranks; ++rank) {
    processes.push_back(start(job, rank, port, outputs[static_cast<std::size_t>(rank)].descriptor()));
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
