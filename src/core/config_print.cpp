#include <tessera/core/config_file.h>
#include "core/duration.h"
#include "core/field_text.h"
#include "core/nearest_key.h"
#include "core/quoting.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace tessera {
namespace {

struct TomlLiteral {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const {
    std::string text = number_text(value);
    // "1" would be an integer. Infinities and NaN are words in TOML too, and have an 'n'.
    if (text.find_first_of(".en") == std::string::npos) {
      text += ".0";
    }
    return text;
  }
  std::string operator()(const std::string& value) const { return in_quotes(value); }
  std::string operator()(std::chrono::milliseconds value) const { return in_quotes(duration_text(value)); }
  template <class T>
  std::string operator()(const std::vector<T>& items) const {
    std::string text;
    for (const T& item : items) {
      text += (text.empty() ? "" : ", ") + (*this)(item);
    }
    return "[" + text + "]";
  }
};

std::string toml_literal(const FieldValue& value) { return std::visit(TomlLiteral(), value); }

void print_section(const void* options, const FieldTable& fields, const std::string& section, std::string& text) {
  std::string body;
  for (const Field& field : fields.fields()) {
    if (section_of(field.key) != section) {
      continue;
    }
    if (!field.help.empty()) {
      body += "# " + field.help + "\n";
    }
    body += std::string(leaf_of(field.key)) + " = " + toml_literal(field.get(options)) + "\n";
  }
  if (!body.empty()) {
    text += text.empty() ? "" : "\n";
    text += section.empty() ? body : "[" + section + "]\n" + body;
  }
}

/// A bar would end the cell, even inside a code span.
std::string markdown_cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    cell += c == '|' ? "\\|" : std::string(1, c);
  }
  return cell;
}

std::string type_cell(const Field& field) {
  if (field.choices.empty()) {
    return field.type_name();
  }
  return "one of " + list_in_quotes(field.choices);
}

}  // namespace

namespace detail {

std::string print_config(const void* options, const FieldTable& fields) {
  std::string text;
  // What lies in no table must come before the first one.
  print_section(options, fields, "", text);
  for (const std::string& section : section_names(fields)) {
    print_section(options, fields, section, text);
  }
  return text;
}

}  // namespace detail

std::string reference_table(const FieldTable& fields) {
  std::string table = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const Field& field : fields.fields()) {
    table += "| `" + field.key + "` | " + markdown_cell(type_cell(field)) + " | `" +
             markdown_cell(toml_literal(field.default_value)) + "` | " + markdown_cell(field.help) + " |\n";
  }
  return table;
}

}  // namespace tessera
