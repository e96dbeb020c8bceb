#include "launch/process.h"

#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <memory>
#include <sched.h>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tessera::launch {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// The kernel's form of a set of processors: cpu_set_t ends at 1024.
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const auto word = static_cast<std::size_t>(cpu / kBits);
    if (word >= mask.size()) mask.resize(word + 1);
    mask[word] |= 1UL << (cpu % kBits);
  }
  return mask;
}

/// Note [Between fork and exec]
/// The caller may have threads, one of which held a lock when the process was copied. So the child makes
/// async-signal-safe calls only, and everything it needs is prepared before.
class Child {
 public:
  Child(const ProcessSpec& spec, int report)
      : spec_(spec),
        argument_texts_(spec.arguments),
        environment_texts_(spec.environment),
        arguments_(pointers(argument_texts_)),
        environment_(pointers(environment_texts_)),
        mask_(cpu_mask(spec.cpus)),
        caller_(getpid()),
        report_(report) {}

  [[noreturn]] void become() {
    if (prepare()) execve(spec_.program.c_str(), arguments_.data(), environment_.data());
    const int fault = errno;
    // If this fails too, the fault cannot be reported.
    [[maybe_unused]] const ssize_t written = write(report_, &fault, sizeof(fault));
    _exit(127);
  }

 private:
  bool prepare() const {
    if (spec_.own_group && setpgid(0, 0) != 0) return false;
    if (spec_.dies_with_caller) {
      if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
      if (getppid() != caller_) _exit(127);  // the caller died before prctl()
    }
    if (!mask_.empty()) {
      const auto* mask = reinterpret_cast<const cpu_set_t*>(mask_.data());
      if (sched_setaffinity(0, mask_.size() * sizeof(unsigned long), mask) != 0) return false;
    }
    if (!move(spec_.input, STDIN_FILENO) || !move(spec_.output, STDOUT_FILENO) || !move(spec_.error, STDERR_FILENO)) {
      return false;
    }
    sigset_t none;
    sigemptyset(&none);
    return signal(SIGPIPE, SIG_DFL) != SIG_ERR && sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
  }

  static bool move(int from, int to) { return from < 0 || dup2(from, to) == to; }

  const ProcessSpec& spec_;
  std::vector<std::string> argument_texts_;
  std::vector<std::string> environment_texts_;
  std::vector<char*> arguments_;
  std::vector<char*> environment_;
  std::vector<unsigned long> mask_;
  pid_t caller_;
  int report_;
};

}  // namespace

Started start_process(const ProcessSpec& spec) {
  std::array<int, 2> report{};
  if (pipe2(report.data(), O_CLOEXEC) != 0)
    throw CommError(std::string("no pipe can be made: ") + std::strerror(errno));
  const Descriptor read_end(report[0]);
  Descriptor write_end(report[1]);
  Child child(spec, write_end.get());
  const pid_t process = fork();
  if (process == 0) child.become();
  if (process < 0) throw CommError("no process can be started for " + spec.program + ": " + std::strerror(errno));
  write_end.reset();
  // exec closes the other end.
  int fault = 0;
  ssize_t count = 0;
  do {
    count = read(read_end.get(), &fault, sizeof(fault));
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof(fault))) return {process, 0};
  waitpid(process, nullptr, 0);
  return {-1, fault};
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

namespace {

std::string signal_text(int signal) {
  std::string text = signal_name(signal) + " (" + strsignal(signal) + ")";
  if (signal == SIGKILL) text += "; the kernel does that when memory runs out, see dmesg";
  return text;
}

/// The usual meaning of an exit code; empty where there is none.
std::string code_meaning(int code) {
  switch (code) {
    case 2:
      return "tessera::ConfigError: a wrong option, shape or layout";
    case 3:
      return "tessera::CommError: a peer, a connection or a deadline failed";
    case 4:
      return "tessera::StorageError: a file or a disk failed";
    case 70:
      return "tessera::InternalError: a fault of Tessera's own";
    case kNotExecutableExitCode:
      return "a shell's: the program cannot be executed";
    case kNotFoundExitCode:
      return "a shell's: the program was not found";
    default:
      return code > 128 && code < 128 + NSIG ? "128 + " + signal_text(code - 128) : "";
  }
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

std::string exit_meaning(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "was ended by " + signal_text(WTERMSIG(wait_status));
  const int code = WEXITSTATUS(wait_status);
  const std::string meaning = code_meaning(code);
  return "exited with code " + std::to_string(code) + (meaning.empty() ? "" : " (" + meaning + ")");
}

std::vector<int> ending_signals() {
  std::vector<int> signals;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action{};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signals.push_back(signal);
  }
  return signals;
}

SignalReader::SignalReader(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) throw CommError(std::string("signals cannot be read: ") + std::strerror(errno));
}

std::optional<int> SignalReader::next() const {
  signalfd_siginfo info{};
  if (read(descriptor_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::launch

extern char** environ;  // NOLINT: POSIX's own name

namespace tessera::launch {

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

std::vector<std::string> entries_of(const Environment& environment) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  return entries;
}

void set_place(Environment& environment, const RankPlace& place) {
  environment["RANK"] = std::to_string(place.rank);
  environment["WORLD_SIZE"] = std::to_string(place.world_size);
  environment["LOCAL_RANK"] = std::to_string(place.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(place.local_world_size);
  environment["NODE_RANK"] = std::to_string(place.node_rank);
  environment["MASTER_ADDR"] = place.master_address;
  environment["MASTER_PORT"] = std::to_string(place.master_port);
}

namespace {

enum class Kind { kAbsent, kFolder, kNotExecutable, kProgram };

Kind kind_of(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return Kind::kAbsent;
  if (S_ISDIR(status.st_mode)) return Kind::kFolder;
  return access(path.c_str(), X_OK) == 0 ? Kind::kProgram : Kind::kNotExecutable;
}

std::vector<std::string> candidates(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name};
  const char* variable = std::getenv("PATH");
  const std::string folders = variable == nullptr ? "/usr/bin:/bin" : variable;
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    paths.push_back((folder.empty() ? "." : folder) + "/" + name);
    begin = end + 1;
  }
  return paths;
}

std::string how_to_start(const std::string& path) {
  if (path.ends_with(".py")) return "start it by its interpreter: python3 " + path;
  return "make it executable (chmod +x), or start it by its interpreter";
}

}  // namespace

ProgramPath find_program(const std::string& name) {
  std::string refused;
  Kind reason = Kind::kAbsent;
  for (const std::string& path : candidates(name)) {
    const Kind kind = kind_of(path);
    if (kind == Kind::kProgram) return {path, "", 0};
    if (kind != Kind::kAbsent && refused.empty()) {
      refused = path;
      reason = kind;
    }
  }
  if (reason == Kind::kFolder) return {"", refused + " is a folder; a program was expected", kNotExecutableExitCode};
  if (reason == Kind::kNotExecutable) {
    return {"", refused + " is not executable; " + how_to_start(refused), kNotExecutableExitCode};
  }
  const bool is_path = name.find('/') != std::string::npos;
  return {"",
          is_path ? "there is no program " + name + "; check the path (relative ones start at the current folder)"
                  : "there is no program \"" + name + "\" in PATH; one in the current folder is called ./" + name,
          kNotFoundExitCode};
}

namespace {

/// The parent of a process, 0 when it is gone or a zombie.
pid_t living_parent_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  // The name in parentheses may hold anything, parentheses too.
  const auto name_end = text.rfind(") ");
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(text.substr(name_end + 2));
  char state = 'Z';
  pid_t parent = 0;
  rest >> state >> parent;
  return state == 'Z' || state == 'X' ? 0 : parent;
}

std::multimap<pid_t, pid_t> children_of_all() {
  std::multimap<pid_t, pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), &closedir);
  if (!folder) return children;
  while (const dirent* entry = readdir(folder.get())) {
    pid_t process = 0;
    const char* name = entry->d_name;
    const char* end = name + std::strlen(name);
    if (std::from_chars(name, end, process).ptr != end || process <= 0) continue;
    if (const pid_t parent = living_parent_of(name); parent > 0) children.emplace(parent, process);
  }
  return children;
}

/// Whether there are children left.
bool reap() {
  while (true) {
    const pid_t process = waitpid(-1, nullptr, WNOHANG);
    if (process == 0) return true;
    if (process < 0 && errno != EINTR) return false;
  }
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> descendants() {
  const auto children = children_of_all();
  std::vector<pid_t> found{getpid()};
  for (std::size_t next = 0; next < found.size(); ++next) {
    const auto [begin, end] = children.equal_range(found[next]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> kill_descendants(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // A process that is started during a round is found in a later one: when its parent dies, it becomes our child.
  while (reap()) {
    const auto all = descendants();
    if (std::chrono::steady_clock::now() > deadline) return all;
    // Stopped first, so that none can start another while its siblings are being killed.
    for (const pid_t process : all) kill(process, SIGSTOP);
    for (const pid_t process : all) kill(process, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

}  // namespace tessera::launch
