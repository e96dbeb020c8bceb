#include "tokens/documents.h"

#include <cstddef>

namespace tessera::tokens {
namespace {

/// Takes the first line off `rest`, without its end.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& use) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    use(is_blank(line) ? std::string_view() : line);
  }
}

void for_each_block(std::string_view text, const std::function<void(std::string_view)>& use) {
  const char* begin = nullptr;  // of the block that is open
  const char* end = nullptr;
  const auto close = [&] {
    if (begin != nullptr) use(std::string_view(begin, static_cast<std::size_t>(end - begin)));
    begin = nullptr;
  };
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (is_blank(line)) {
      close();
      continue;
    }
    if (begin == nullptr) begin = line.data();
    end = line.data() + line.size();
  }
  close();
}

}  // namespace

void for_each_document(std::string_view text, DocumentUnit unit, const std::function<void(std::string_view)>& use) {
  switch (unit) {
    case DocumentUnit::kFile:
      return use(text);
    case DocumentUnit::kLine:
      return for_each_line(text, use);
    case DocumentUnit::kBlock:
      return for_each_block(text, use);
  }
}

}  // namespace tessera::tokens
