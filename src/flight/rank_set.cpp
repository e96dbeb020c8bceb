#include <tessera/flight/rank_set.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace tessera::flight {
namespace {

/// Wider than a rank: what comes from a file may be as far apart as numbers are.
std::int64_t step_at(const std::vector<int>& ranks, std::size_t place) {
  return std::int64_t{ranks[place + 1]} - ranks[place];
}

/// How many ranks from `begin` on are evenly spaced.
std::size_t run_length(const std::vector<int>& ranks, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end + 1 < ranks.size() && step_at(ranks, end) == step_at(ranks, begin)) ++end;
  return std::min(end + 1, ranks.size()) - begin;
}

std::string run_text(int first, int last, std::int64_t step) {
  std::string text = std::to_string(first) + "-" + std::to_string(last);
  return step == 1 ? text : text + ":" + std::to_string(step);
}

/// Takes a number, and the character `before` it when that is not 0, off the front of `text`.
bool take(std::string_view& text, char before, int& number) {
  if (before != 0) {
    if (text.empty() || text.front() != before) return false;
    text.remove_prefix(1);
  }
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    const std::size_t length = run_length(ranks, i);
    if (!text.empty()) text += ",";
    if (length < 3) {  // "0,4" reads better than "0-4:4"
      text += std::to_string(ranks[i++]);
      continue;
    }
    text += run_text(ranks[i], ranks[i + length - 1], step_at(ranks, i));
    i += length;
  }
  return text;
}

std::vector<int> parse_ranks(std::string_view text) {
  constexpr int kMostRanks = 1 << 20;  // a text from a damaged box must not fill the memory
  std::vector<int> ranks;
  int first = 0;
  for (char before = 0; take(text, before, first); before = ',') {
    int last = first;
    int step = 1;
    if (take(text, '-', last)) take(text, ':', step);
    if (first < 0 || last < first || step < 1 || (last - first) / step >= kMostRanks) break;
    for (std::int64_t rank = first; rank <= last; rank += step) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace tessera::flight
