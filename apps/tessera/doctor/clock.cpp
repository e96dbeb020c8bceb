// Whether times of several machines can be compared.
#include <sys/timex.h>

#include <cerrno>
#include <cstring>

#include "tessera/doctor/checks.h"

namespace tessera::doctor {

Checks check_clock() {
  timex state{};
  const int answer = adjtimex(&state);
  if (answer < 0) return {{"clock", Health::kWarn, std::strerror(errno), "let the container call adjtimex"}};
  if (answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0) return {{"clock", Health::kOk, "synchronised", ""}};
  return {{"clock", Health::kWarn, "not synchronised, as far as the kernel knows",
           "start chrony or systemd-timesyncd where a job has several nodes: their reports are compared by time"}};
}

}  // namespace tessera::doctor
