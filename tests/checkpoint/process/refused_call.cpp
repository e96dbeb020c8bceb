#include "checkpoint/process/refused_call.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>

#include "checkpoint/process/call_filter.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

struct Refusal {
  FilteredCall call;
  std::function<long()> attempt;  // that would say something else if it were not refused
};

const Refusal& refusal_of(const std::string& name) {
  static const std::map<std::string, Refusal> all{
      {"exchange",
       {{.call = __NR_renameat2, .argument = 4, .bits = RENAME_EXCHANGE, .error = EINVAL},
        [] { return long{renameat2(AT_FDCWD, "/none", AT_FDCWD, "/none", RENAME_EXCHANGE)}; }}},
      {"direct",
       {{.call = __NR_openat, .argument = 2, .bits = O_DIRECT, .error = EINVAL},
        [] { return long{open("/none", O_WRONLY | O_DIRECT)}; }}},
      {"ring",
       {{.call = __NR_io_uring_setup, .error = EPERM}, [] { return syscall(__NR_io_uring_setup, 0, nullptr); }}},
      {"submission",
       {{.call = __NR_io_uring_enter, .error = EPERM},
        [] { return syscall(__NR_io_uring_enter, -1, 0, 0, 0, nullptr, 0); }}},
  };
  return all.at(name);
}

}  // namespace

void refuse_call(const std::string& name) {
  const Refusal& refusal = refusal_of(name);
  require(refusal.attempt() < 0 && errno != refusal.call.error, name + ": refused before it was to be");
  refuse_calls({refusal.call});
  require(refusal.attempt() < 0 && errno == refusal.call.error, name + ": not refused");
}

}  // namespace tessera::testing
