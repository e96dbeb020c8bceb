#include "checkpoint/process/call_filter.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tessera::testing {
namespace {

using Program = std::vector<sock_filter>;

sock_filter load(std::size_t offset) { return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)}; }
sock_filter give(std::uint32_t verdict) { return {BPF_RET | BPF_K, 0, 0, verdict}; }
sock_filter skip_unless(std::uint16_t test, std::uint32_t value, std::uint8_t num_skipped) {
  return {static_cast<std::uint16_t>(BPF_JMP | test | BPF_K), 0, num_skipped, value};
}

/// `verdict` for one call, and on to the next instruction for all others.
void add(Program& program, const FilteredCall& filtered, std::uint32_t verdict) {
  const auto number = static_cast<std::uint32_t>(filtered.call);
  if (filtered.argument < 0) {
    program.insert(program.end(), {skip_unless(BPF_JEQ, number, 1), give(verdict)});
    return;
  }
  const std::size_t lower_half = offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(filtered.argument);
  program.insert(program.end(), {skip_unless(BPF_JEQ, number, 4), load(lower_half),
                                 skip_unless(BPF_JSET, filtered.bits, 1), give(verdict), load(0)});
}

/// What the call that installs it returns.
int install(Program program, unsigned flags) {
  program.insert(program.begin(), load(offsetof(seccomp_data, nr)));
  program.push_back(give(SECCOMP_RET_ALLOW));
  sock_fprog text{static_cast<unsigned short>(program.size()), program.data()};
  // Without it only root may install one.
  const bool is_ready = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  const auto result =
      is_ready
          ? static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_TSYNC, &text))
          : -1;
  if (result < 0) throw std::runtime_error(std::string("no filter of calls: ") + std::strerror(errno));
  return result;
}

}  // namespace

void refuse_calls(const std::vector<FilteredCall>& calls) {
  Program program;
  for (const FilteredCall& call : calls) {
    add(program, call, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(call.error));
  }
  install(std::move(program), 0);
}

Descriptor hand_over_calls(const std::vector<int>& calls) {
  Program program;
  for (const int call : calls) add(program, {.call = call}, SECCOMP_RET_USER_NOTIF);
  return Descriptor(install(std::move(program), SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH));
}

}  // namespace tessera::testing
