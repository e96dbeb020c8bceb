#include "core/quoting.h"

#include <cstddef>

namespace tessera {
namespace {

std::string list_item(const std::string& item) {
  if (!item.empty() && item.find_first_of(",\"") == std::string::npos) {
    return item;
  }
  std::string text = "\"";
  for (const char c : item) {
    if (c == '"' || c == '\\') {
      text += '\\';
    }
    text += c;
  }
  return text + "\"";
}

/// Takes the quoted item that `text` begins with off its front.
std::optional<std::string> take_quoted_item(std::string_view& text) {
  std::string item;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return item;
    }
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
    }
    item += text[i];
  }
  return std::nullopt;
}

std::optional<std::string> take_item(std::string_view& text) {
  if (text.starts_with('"')) {
    return take_quoted_item(text);
  }
  std::string item(text.substr(0, text.find(',')));
  text.remove_prefix(item.size());
  return item.empty() ? std::nullopt : std::optional(item);
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      result += {'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 15]};
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string list_in_quotes(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "" : ", ") + in_quotes(item);
  }
  return text;
}

std::string join_list(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "" : ",") + list_item(item);
  }
  return text;
}

std::optional<std::vector<std::string>> split_list(std::string_view text) {
  std::vector<std::string> items;
  if (text.empty()) {
    return items;
  }
  while (true) {
    auto item = take_item(text);
    if (!item) {
      return std::nullopt;
    }
    items.push_back(std::move(*item));
    if (text.empty()) {
      return items;
    }
    if (text[0] != ',') {
      return std::nullopt;
    }
    text.remove_prefix(1);
  }
}

}  // namespace tessera
