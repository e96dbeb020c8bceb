#pragma once

#include <tessera/observe/step_record.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::observe {

/// "812", "14.2k", "3.1M"
std::string count_text(double count);
/// "812 MB", "1.4 GB"
std::string bytes_text(std::int64_t bytes);
/// "81.2 ms", "3.10 s"
std::string step_time_text(double seconds);
/// "0:42", "12:03", "3:12:03", "2d 03h"
std::string remaining_text(double seconds);
/// "2.3456", "1.2e-05", "nan"
std::string loss_text(double loss);

/// "saving step 20: 312 of 838 MB, 1.10 GB/s", of a transfer that began so many seconds ago. Without a total: "saving
/// step 20: 312 MB, 1.10 GB/s".
std::string transfer_text(const std::string& title, std::uint64_t done, std::uint64_t total, double seconds);

/// How fast it goes lately: steps of long ago count less and less.
class Pace {
 public:
  void add(const StepSummary& summary);
  double step_seconds() const { return num_steps_ > 0 ? seconds_ / num_steps_ : 0; }
  double tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

 private:
  double num_steps_ = 0;
  double tokens_ = 0;
  double seconds_ = 0;
};

/// The line, in at most `width` characters of ASCII: what matters least is left out first.
std::string progress_text(const StepSummary& summary, const Pace& pace, const RunDescription& run, std::size_t width);

}  // namespace tessera::observe
