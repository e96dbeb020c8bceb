#pragma once

#include <tessera/flight/snapshot.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::flight {

enum class RankCondition : std::uint8_t {
  kWaiting,  ///< in a communication call
  kRunning,  ///< alive, in its own code
  kStopped,  ///< by a signal or a debugger
  kSilent,   ///< no sign of life, for a reason that is not known
  kDead,
  kMissing,  ///< never came to the rendezvous
};

/// Whether it still answers: in a call, or in its own code.
constexpr bool is_alive(RankCondition condition) {
  return condition == RankCondition::kWaiting || condition == RankCondition::kRunning;
}

/// What is known about one rank.
struct RankStatus {
  int rank = 0;
  RankCondition condition = RankCondition::kWaiting;
  std::string detail;                ///< such as "ended by SIGKILL"; may be empty
  std::optional<Snapshot> snapshot;  ///< nothing when it could not be read
  std::vector<std::string> stack;    ///< of its main thread, innermost first; may be empty

  bool operator==(const RankStatus&) const = default;
};

/// One thing that explains the hang.
struct Finding {
  std::vector<int> ranks;            ///< to blame, or to look at
  std::string what;                  ///< a sentence
  std::vector<std::string> details;  ///< further sentences
  std::string advice;

  bool operator==(const Finding&) const = default;
};

/// Why ranks wait for each other.
struct HangReport {
  std::string trigger;  ///< why the report was made, such as "all_reduce #3 of group world has waited 5.0 s"
  bool fatal = true;    ///< whether the job ends; otherwise it goes on, and the ranks may only be slow
  std::int64_t time_ns = 0;
  int world_size = 0;
  std::vector<Finding> findings;  ///< the likeliest cause first
  std::vector<RankStatus> ranks;

  bool operator==(const HangReport&) const = default;
};

/// Compares what the ranks recorded. Pure: it sends nothing and waits for nothing.
HangReport analyse(std::string trigger, bool fatal, std::int64_t time_ns, int world_size,
                   std::vector<RankStatus> ranks);

/// For a terminal: at most `width` columns where words allow it. Ranks that do the same share one line.
std::string to_text(const HangReport& report, int width = 110);

std::string to_json(const HangReport& report);
/// Throws ConfigError for what is not a report.
HangReport hang_report_from_json(std::string_view text);

/// "waits", "runs", "is stopped", "is silent", "is dead", "never came".
const char* verb(RankCondition condition);

}  // namespace tessera::flight
