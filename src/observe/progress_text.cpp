#include "observe/progress_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

namespace tessera::observe {
namespace {

std::string formatted(const char* format, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

/// Three digits that count.
std::string three_digits(double number) {
  return formatted(number < 9.995 ? "%.2f" : number < 99.95 ? "%.1f" : "%.0f", number);
}

std::string two_digits(std::int64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); }

struct Piece {
  std::string text;
  int importance;  // the smallest goes first
};

std::string joined(const std::vector<Piece>& pieces) {
  std::string line;
  for (const Piece& piece : pieces) line += (line.empty() ? "" : "  ") + piece.text;
  return line;
}

std::string step_text(const StepSummary& summary, const RunDescription& run) {
  std::string text = "step " + std::to_string(summary.last.step);
  if (run.total_steps <= 0) return text;
  const double share = static_cast<double>(summary.last.step) / static_cast<double>(run.total_steps);
  return text + "/" + std::to_string(run.total_steps) + " " + formatted("%.0f%%", std::floor(100 * share));
}

}  // namespace

std::string count_text(double count) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, name] : kUnits) {
    if (count >= 0.9995 * unit) return three_digits(count / unit) + name;
  }
  return formatted("%.0f", count);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kGigabyte = 1e9;
  const auto number = static_cast<double>(bytes);
  if (number >= 0.9995 * kGigabyte) return three_digits(number / kGigabyte) + " GB";
  return formatted("%.0f MB", number / 1e6);
}

std::string transfer_text(const std::string& title, std::uint64_t done, std::uint64_t total, double seconds) {
  const auto text = [](std::uint64_t bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); };
  const auto rate = static_cast<std::uint64_t>(static_cast<double>(done) / std::max(seconds, 1e-3));
  std::string amount = text(done);
  if (total > 0) {
    // One unit for both reads better: "312 of 838 MB".
    const std::string whole = text(total);
    const std::string unit = whole.substr(whole.find(' '));
    if (amount.ends_with(unit)) amount.resize(amount.size() - unit.size());
    amount += " of " + whole;
  }
  return title + ": " + amount + ", " + text(rate) + "/s";
}

std::string step_time_text(double seconds) {
  if (seconds >= 0.9995) return three_digits(seconds) + " s";
  return three_digits(seconds * 1e3) + " ms";
}

std::string remaining_text(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years: nobody waits for longer, and it fits any integer
  if (!(seconds >= 0) || seconds > kLongest) return "unknown";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  constexpr std::int64_t kDay = 86400;
  if (total >= kDay) return std::to_string(total / kDay) + "d " + two_digits(total % kDay / 3600) + "h";
  const std::string rest = two_digits(total % 60);
  if (total < 3600) return std::to_string(total / 60) + ":" + rest;
  return std::to_string(total / 3600) + ":" + two_digits(total % 3600 / 60) + ":" + rest;
}

std::string loss_text(double loss) {
  const double size = std::abs(loss);
  return formatted(size == 0 || (size >= 1e-3 && size < 1e5) ? "%.4f" : "%.3g", loss);
}

void Pace::add(const StepSummary& summary) {
  constexpr double kMemorySeconds = 10;
  const double fading = std::exp(-summary.seconds / kMemorySeconds);
  num_steps_ = num_steps_ * fading + static_cast<double>(summary.num_steps);
  tokens_ = tokens_ * fading + static_cast<double>(summary.tokens);
  seconds_ = seconds_ * fading + summary.seconds;
}

std::string progress_text(const StepSummary& summary, const Pace& pace, const RunDescription& run, std::size_t width) {
  std::vector<Piece> pieces = {{step_text(summary, run), std::numeric_limits<int>::max()}};
  if (summary.last.loss) pieces.push_back({"loss " + loss_text(*summary.last.loss), 6});
  if (pace.tokens_per_second() > 0) pieces.push_back({count_text(pace.tokens_per_second()) + " tokens/s", 4});
  pieces.push_back({step_time_text(pace.step_seconds()) + "/step", 3});
  if (run.total_steps > 0) {
    const auto num_left = static_cast<double>(std::max<std::int64_t>(0, run.total_steps - summary.last.step));
    pieces.push_back({"ETA " + remaining_text(num_left * pace.step_seconds()), 5});
  }
  pieces.push_back({"mem " + bytes_text(summary.memory.resident_bytes), 2});
  pieces.push_back({"peak " + bytes_text(summary.memory.peak_bytes), 1});
  const auto less_important = [](const Piece& a, const Piece& b) { return a.importance < b.importance; };
  while (pieces.size() > 1 && joined(pieces).size() > width) {
    pieces.erase(std::min_element(pieces.begin(), pieces.end(), less_important));
  }
  return joined(pieces).substr(0, width);
}

}  // namespace tessera::observe
