#include "launcher.h"

#include <tessera/core/descriptor.h>
#include <tessera/flight/process_state.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <thread>

#include "launch/process.h"

namespace tessera::testing {
namespace {

Descriptor create(const std::string& path) {
  return Descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

}  // namespace

bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void stop_process(pid_t process) {
  kill(process, SIGSTOP);
  EXPECT_TRUE(
      eventually([&] { return flight::state_of_process(process).condition == flight::RankCondition::kStopped; }));
}

Launcher::Launcher(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& variables,
                   const std::vector<std::string>& wrapper)
    : mark_("TESSERA_TEST_MARK=" + folder_.path().string()) {
  launch::ProcessSpec spec;
  spec.program = wrapper.empty() ? TESSERA_CLI : wrapper[0];
  spec.arguments = wrapper;
  spec.arguments.insert(spec.arguments.end(), {TESSERA_CLI, "run"});
  spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
  auto environment = launch::current_environment();
  environment.erase("OMP_NUM_THREADS");
  for (const auto& [name, value] : variables) environment[name] = value;
  environment["TESSERA_TEST_MARK"] = folder_.path().string();
  environment["TEST_FOLDER"] = folder_.path().string();
  spec.environment = launch::entries_of(environment);
  const auto output = create(file("stdout"));
  const auto errors = create(file("stderr"));
  spec.output = output.get();
  spec.error = errors.get();
  front_ = launch::start_process(spec).process;
}

Launcher::~Launcher() {
  if (!ended_) {
    kill(front_, SIGKILL);
    waitpid(front_, nullptr, 0);
  }
  for (const pid_t process : processes()) kill(process, SIGKILL);
}

pid_t Launcher::supervisor() const {
  for (const pid_t process : processes()) {
    std::istringstream stat(text_of_file("/proc/" + std::to_string(process) + "/stat"));
    std::string number;
    std::string name;
    char state = 0;
    pid_t parent = 0;
    stat >> number >> name >> state >> parent;
    if (parent == front_) return process;
  }
  return -1;
}

void Launcher::send(int signal) const { kill(front_, signal); }

int Launcher::wait(std::chrono::milliseconds timeout) {
  int status = 0;
  ended_ = eventually([&] { return waitpid(front_, &status, WNOHANG) == front_; }, timeout);
  if (ended_) return launch::exit_code_of(status);
  ADD_FAILURE() << "the launcher does not end; it wrote:\n" << output() << errors();
  return -1;
}

bool Launcher::wait_for_output(const std::string& text) const {
  const bool came = eventually([&] { return output().find(text) != std::string::npos; });
  EXPECT_TRUE(came) << "\"" << text << "\" did not come; found:\n" << output() << errors();
  return came;
}

std::vector<std::string> Launcher::output_lines() const {
  std::vector<std::string> lines;
  std::istringstream text(output());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<pid_t> Launcher::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // A zombie has no environment any more.
    const std::string environment = '\0' + text_of_file(entry.path() / "environ");
    if (environment.find('\0' + mark_ + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

void Launcher::expect_no_processes() const {
  std::string left;
  const bool gone = eventually(
      [&] {
        left.clear();
        for (const pid_t process : processes()) {
          left += std::to_string(process) + " " + text_of_file("/proc/" + std::to_string(process) + "/comm");
        }
        return left.empty();
      },
      std::chrono::seconds(5));
  EXPECT_TRUE(gone) << "left behind:\n" << left;
}

std::vector<std::string> shell_ranks(int num_ranks, const std::string& script, std::vector<std::string> options) {
  options.insert(options.end(), {"--nproc-per-node", std::to_string(num_ranks), "--", "sh", "-c", script});
  return options;
}

}  // namespace tessera::testing
