#include "launch/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace tessera::launch {
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

std::vector<pid_t> kill_descendants(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  // A child that is made while we look is found in a later round: whose parent dies becomes ours.
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
