#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// A text as JSON writes it, in quotes. Throws ConfigError when it is not UTF-8, calling what should hold it `holder`.
std::string json_text(const std::string& text, std::string_view holder);

/// Appends "[2,3]".
template <typename Number>
void append_json_list(std::string& text, const std::vector<Number>& numbers) {
  text += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

/// Whether a name from a file is that of a file in the same folder, and leads nowhere else.
inline bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace tessera::checkpoints
