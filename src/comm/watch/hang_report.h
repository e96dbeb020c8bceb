#pragma once

#include <tessera/flight/hang_report.h>

#include <chrono>
#include <string>

#include "comm/watch/alarm.h"
#include "comm/watch/job_keys.h"

namespace tessera::comm {

/// Reads the answers of all ranks to an alarm, and puts together what they say.
/// Blocks: until all have answered, at most `patience`.
flight::HangReport collect_report(const JobKeys& keys, int number, const Alarm& alarm, int size,
                                  std::chrono::milliseconds patience);

/// On standard error, and as `hang_NUMBER.json` in the folder unless that is empty.
void publish(const flight::HangReport& report, int number, const std::string& folder);

}  // namespace tessera::comm
