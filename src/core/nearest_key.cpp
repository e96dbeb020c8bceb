#include "core/nearest_key.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

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

/// Removes the quoted item at the start of `text` and returns it.
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

namespace {

bool is_close(std::size_t distance, std::string_view a, std::string_view b) {
  return 2 * distance <= std::max(a.size(), b.size());
}

std::vector<std::string> keys_and_sections(const FieldTable& fields) {
  std::vector<std::string> all = section_names(fields);
  for (const Field& field : fields.fields()) {
    all.push_back(field.key);
  }
  return all;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (is_close(distance, word, candidate) && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string_view section_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view leaf_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::vector<std::string> section_names(const FieldTable& fields) {
  std::vector<std::string> names;
  for (const Field& field : fields.fields()) {
    for (auto dot = field.key.find('.'); dot != std::string::npos; dot = field.key.find('.', dot + 1)) {
      const std::string name = field.key.substr(0, dot);
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

std::string unknown_key_hint(const FieldTable& fields, std::string_view key) {
  // Half a point for another section: at equal distance a key of the same section wins.
  std::optional<std::string> best;
  std::size_t best_score = 0;
  std::string beside;
  for (const std::string& candidate : keys_and_sections(fields)) {
    const bool same_section = section_of(candidate) == section_of(key);
    const std::size_t distance = edit_distance(leaf_of(key), leaf_of(candidate));
    const std::size_t score = 2 * distance + (same_section ? 0 : 1);
    if (is_close(distance, leaf_of(key), leaf_of(candidate)) && (!best || score < best_score)) {
      best = candidate;
      best_score = score;
    }
    if (same_section) {
      beside += (beside.empty() ? "" : ", ") + candidate;
    }
  }
  if (best) {
    return "did you mean \"" + *best + "\"?";
  }
  return beside.empty() ? "there is no such section" : "valid keys are " + beside;
}

}  // namespace tessera
