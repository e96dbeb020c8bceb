#include "comm/watch/thread_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

namespace tessera::comm {
namespace {

constexpr int kMostFrames = 64;
/// The handler itself, and the signal frame of the kernel below it.
constexpr int kFramesOfTheHandler = 2;
constexpr std::size_t kFramesShown = 12;

// A handler can reach nothing but what is static.
std::array<void*, kMostFrames> captured;  // NOLINT(*-non-const-global-variables)
std::atomic<int> num_captured{-1};        // NOLINT(*-non-const-global-variables)

int stack_signal() { return SIGRTMAX - 3; }

void capture(int /*signal*/) {
  const int saved = errno;
  num_captured.store(backtrace(captured.data(), kMostFrames), std::memory_order_release);
  errno = saved;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

std::string file_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

/// "function at file:line" from debug information; empty when there is none. Frames hold return addresses, so the call
/// is one byte before.
std::string line_of(const Dl_info& where, const void* frame) {
  if (std::strchr(where.dli_fname, '\'') != nullptr) return "";
  const auto offset = static_cast<const char*>(frame) - static_cast<const char*>(where.dli_fbase) - 1;
  std::string command = "exec timeout 2 addr2line -Cfspe '" + std::string(where.dli_fname) + "' 0x";
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%zx 2>/dev/null", static_cast<std::size_t>(offset));
  command += digits.data();
  // NOLINTNEXTLINE(bugprone-command-processor): a name that could end the quotes was refused above
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), &pclose);
  std::array<char, 1024> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
  std::string text = line.data();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.find("??") == std::string::npos ? text : "";
}

std::string describe_frame(void* frame, bool is_program) {
  Dl_info where{};
  if (dladdr(frame, &where) == 0 || where.dli_fname == nullptr) return "?";
  // Debug information of big libraries takes seconds to read; the user's own code is in the program.
  if (is_program) {
    std::string line = line_of(where, frame);
    if (!line.empty()) return line;
  }
  const std::string file = file_name(where.dli_fname);
  return where.dli_sname == nullptr ? "in " + file : demangled(where.dli_sname) + " in " + file;
}

/// Tessera is linked into the user's program, or into the library that the user wrote around it.
bool is_in_program(void* frame) {
  Dl_info own{};
  Dl_info where{};
  return dladdr(frame, &where) != 0 && dladdr(reinterpret_cast<void*>(&describe_frame), &own) != 0 &&
         own.dli_fbase == where.dli_fbase;
}

}  // namespace

void prepare_stacks() {
  std::array<void*, 2> frames{};
  backtrace(frames.data(), frames.size());
  struct sigaction current{};
  if (sigaction(stack_signal(), nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action{};
  action.sa_handler = &capture;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::vector<std::string> stack_of(pthread_t thread, std::chrono::milliseconds timeout) {
  static std::mutex mutex;  // there is one buffer for frames
  const std::lock_guard lock(mutex);
  struct sigaction current{};
  if (sigaction(stack_signal(), nullptr, &current) != 0 || current.sa_handler != &capture) return {};
  num_captured.store(-1);
  if (pthread_kill(thread, stack_signal()) != 0) return {};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (num_captured.load(std::memory_order_acquire) < 0) {
    if (std::chrono::steady_clock::now() > deadline) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<std::string> frames;
  const int count = num_captured.load();
  for (int i = kFramesOfTheHandler; i < count && frames.size() < kFramesShown; ++i) {
    void* frame = captured[static_cast<std::size_t>(i)];
    frames.push_back(describe_frame(frame, is_in_program(frame)));
  }
  return frames;
}

}  // namespace tessera::comm
