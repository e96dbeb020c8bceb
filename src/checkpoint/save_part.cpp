#include "checkpoint/save_part.h"

#include <tessera/checkpoint/checksum.h>
#include <tessera/core/error.h>

#include <charconv>

namespace tessera::checkpoints {
namespace {

/// The text up to the next line feed, which goes too. `text` must end in one.
std::string_view take_line(std::string_view& text, const std::string& origin) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) throw StorageError(origin + " ends within a line");
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

std::vector<std::uint64_t> parse_checksums(std::string_view line, const std::string& origin) {
  std::vector<std::uint64_t> checksums;
  while (!line.empty()) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value, 16);
    if (error != std::errc()) throw StorageError(origin + " holds a checksum that is no number");
    checksums.push_back(value);
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  return checksums;
}

}  // namespace

std::string SavePart::to_text() const {
  std::string text;
  for (const auto& slice : checksums) {
    for (const std::uint64_t checksum : slice) {
      text += checksum_text(checksum) + ' ';
    }
    text += '\n';
  }
  return text;
}

SavePart SavePart::parse(std::string_view text, const std::string& origin) {
  SavePart part;
  while (!text.empty()) part.checksums.push_back(parse_checksums(take_line(text, origin), origin));
  return part;
}

}  // namespace tessera::checkpoints
