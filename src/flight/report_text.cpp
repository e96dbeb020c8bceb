#include <tessera/flight/clock.h>
#include <tessera/flight/hang_report.h>
#include <tessera/flight/rank_set.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

namespace tessera::flight {
namespace {

constexpr int kLabelColumns = 7;

/// `text` in lines of `width` columns, all but the first behind as many blanks as the label takes.
std::string wrapped(const std::string& label, const std::string& text, int width) {
  std::string indent(kLabelColumns, ' ');
  std::string line = label;
  line.resize(std::max<std::size_t>(label.size(), kLabelColumns), ' ');
  // Blanks at the front of a text are meant: frames of a stack stand further in.
  const auto front = text.find_first_not_of(' ');
  if (front != std::string::npos && front > 0) {
    line.append(front, ' ');
    indent.append(front + 2, ' ');
  }
  std::string result;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > static_cast<std::size_t>(width)) {
      result += line + "\n";
      line = indent + word;
    } else {
      line += (first ? "" : " ") + word;
    }
  }
  return result + line + "\n";
}

std::string state_of(const RankStatus& status) {
  std::string text = verb(status.condition);
  if (!status.detail.empty()) text += " (" + status.detail + ")";
  if (!status.snapshot || status.snapshot->calls.empty()) return text;
  const CallRecord& last = status.snapshot->calls.back();
  return text + (last.state == CallState::kStarted ? " in " : ", last call ") + to_string(last);
}

/// Ranks that do the same are one line, for there may be thousands.
std::string table(const HangReport& report, int width) {
  std::vector<std::string> states;
  std::map<std::string, std::vector<const RankStatus*>> by_state;
  for (const RankStatus& status : report.ranks) {
    const std::string state = state_of(status);
    if (by_state[state].empty()) states.push_back(state);
    by_state[state].push_back(&status);
  }
  std::string text;
  for (const std::string& state : states) {
    std::vector<int> ranks;
    std::int64_t longest = 0;
    for (const RankStatus* status : by_state[state]) {
      ranks.push_back(status->rank);
      if (!status->snapshot || status->snapshot->calls.empty()) continue;
      const CallRecord& last = status->snapshot->calls.back();
      if (last.state == CallState::kStarted) longest = std::max(longest, report.time_ns - last.started_ns);
    }
    text += wrapped(ranks_text(ranks) + " ", state + (longest > 0 ? ", for " + seconds_text(longest) : ""), width);
  }
  return text;
}

}  // namespace

std::string to_text(const HangReport& report, int width) {
  const std::string rule(static_cast<std::size_t>(width), '-');
  std::string text = rule + "\n";
  text += wrapped(report.fatal ? "HANG" : "SLOW", report.trigger, width);
  if (report.findings.empty()) {
    text += wrapped("why", "what the ranks recorded does not tell: all that answered are at the same call", width);
  }
  for (const Finding& finding : report.findings) {
    text += wrapped("why", finding.what, width);
    for (const std::string& detail : finding.details) text += wrapped("", detail, width);
    if (!finding.advice.empty()) text += wrapped("do", finding.advice, width);
  }
  return text + "ranks\n" + table(report, width) + rule + "\n";
}

}  // namespace tessera::flight
