#include "intercept/pass_caller.h"

#include <tessera/intercept/backward_pass.h>

#include <memory>
#include <string_view>

namespace tessera::intercept {
namespace {

constexpr std::string_view kName = "tessera::PassCaller";
constexpr c10::DebugInfoKind kKind(&kName);

struct Caller : c10::DebugInfoBase {
  std::thread::id thread = std::this_thread::get_id();
};

}  // namespace

PassCaller::PassCaller() {
  if (!in_backward()) noted_.emplace(kKind, std::make_shared<Caller>());
}

std::thread::id thread_of_program() {
  if (in_backward()) {
    if (const auto* const caller = dynamic_cast<Caller*>(c10::ThreadLocalDebugInfo::get(kKind))) return caller->thread;
  }
  return std::this_thread::get_id();
}

}  // namespace tessera::intercept
