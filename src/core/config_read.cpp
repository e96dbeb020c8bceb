#include <tessera/core/config_file.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <toml++/toml.h>
#include <type_traits>

#include "core/field_text.h"
#include "core/nearest_key.h"

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
  // Keys outside of tables must come before the first table.
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

namespace {

std::string found_text(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    return "the string " + in_quotes(text->get());
  }
  if (const auto* integer = node.as_integer()) {
    return "the integer " + std::to_string(integer->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return "the number " + number_text(number->get());
  }
  if (const auto* boolean = node.as_boolean()) {
    return boolean->get() ? "true" : "false";
  }
  if (node.is_table()) {
    return "a table";
  }
  return node.is_array() ? "a list" : "a date or time";
}

ConfigError wrong_type(FieldType expected, const toml::node& found) {
  return ConfigError("expected " + std::string(field_type_phrase(expected)) + ", found " + found_text(found));
}

template <class T>
T value_of(const toml::node& node, FieldType type) {
  const auto* value = node.as<T>();
  if (!value) {
    throw wrong_type(type, node);
  }
  return value->get();
}

double number_of(const toml::node& node) {
  if (const auto* integer = node.as_integer()) {
    return static_cast<double>(integer->get());
  }
  return value_of<double>(node, FieldType::kNumber);
}

std::chrono::milliseconds duration_of(const toml::node& node) {
  if (const auto* seconds = node.as_integer()) {
    return duration_of_seconds(seconds->get());
  }
  if (const auto* seconds = node.as_floating_point()) {
    return duration_of_seconds(seconds->get());
  }
  return parse_duration(value_of<std::string>(node, FieldType::kDuration));
}

/// Walks a parsed file beside a field list. The faults are gathered so that the user sees all of them in one run.
class Reader {
 public:
  Reader(void* options, const FieldTable& fields)
      : options_(options), fields_(fields), sections_(section_names(fields)) {}

  void read_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string full_key = prefix + std::string(key.str());
      if (key.str().find('.') != std::string_view::npos) {
        // If it were treated as a field, a file could set that field twice.
        add_fault(key, "unknown key " + in_quotes(full_key) + "; in quotes a key is not split at its dots");
      } else if (const Field* field = fields_.find(full_key)) {
        read_field(*field, node);
      } else if (std::find(sections_.begin(), sections_.end(), full_key) != sections_.end()) {
        read_section(full_key, node);
      } else {
        add_fault(key, "unknown key " + in_quotes(full_key) + "; " + unknown_key_hint(fields_, full_key));
      }
    }
  }

  void throw_faults(const std::string& origin) {
    if (faults_.empty()) {
      return;
    }
    // toml++ sorts tables by key; people read by line.
    std::stable_sort(faults_.begin(), faults_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string message;
    for (const auto& [line, fault] : faults_) {
      message += (message.empty() ? "" : "\n") + origin + ":" + std::to_string(line) + ": " + fault;
    }
    throw ConfigError(message);
  }

 private:
  template <class Place>
  void add_fault(const Place& place, std::string fault) {
    faults_.emplace_back(place.source().begin.line, std::move(fault));
  }

  void read_section(const std::string& name, const toml::node& node) {
    if (const toml::table* table = node.as_table()) {
      read_table(*table, name + ".");
    } else {
      add_fault(node, name + ": expected a table, found " + found_text(node));
    }
  }

  void read_field(const Field& field, const toml::node& node) {
    try {
      if (const auto value = convert(field, node)) {
        assign_field(field, options_, *value);
      }
    } catch (const ConfigError& error) {
      add_fault(node, field.key + ": " + error.what());
    }
  }

  std::optional<FieldValue> convert(const Field& field, const toml::node& node) {
    const FieldType type = field.type();
    switch (type) {
      case FieldType::kBool:
        return value_of<bool>(node, type);
      case FieldType::kInteger:
        return value_of<std::int64_t>(node, type);
      case FieldType::kNumber:
        return number_of(node);
      case FieldType::kString:
        return value_of<std::string>(node, type);
      case FieldType::kDuration:
        return duration_of(node);
      case FieldType::kStringList:
        return convert_list<std::string>(field, node, FieldType::kString);
      case FieldType::kIntegerList:
        return convert_list<std::int64_t>(field, node, FieldType::kInteger);
    }
    throw InternalError("a field type without a reader");
  }

  template <class T>
  std::optional<FieldValue> convert_list(const Field& field, const toml::node& node, FieldType item_type) {
    const toml::array* array = node.as_array();
    if (!array) {
      throw wrong_type(field.type(), node);
    }
    std::vector<T> items;
    for (std::size_t i = 0; i < array->size(); ++i) {
      const toml::node& item = (*array)[i];
      if (const auto* value = item.as<T>()) {
        items.push_back(value->get());
      } else {
        add_fault(item, field.key + "[" + std::to_string(i) + "]: " + wrong_type(item_type, item).what());
      }
    }
    return items.size() == array->size() ? std::optional<FieldValue>(std::move(items)) : std::nullopt;
  }

  void* options_;
  const FieldTable& fields_;
  std::vector<std::string> sections_;
  std::vector<std::pair<toml::source_index, std::string>> faults_;
};

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigError(origin + ":" + std::to_string(error.source().begin.line) +
                      ": malformed TOML: " + std::string(error.description()));
  }
}

}  // namespace

namespace detail {

void parse_config(std::string_view text, const std::string& origin, void* options, const FieldTable& fields) {
  Reader reader(options, fields);
  reader.read_table(parse_toml(text, origin), "");
  reader.throw_faults(origin);
}

std::string read_config(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  int reason = file ? 0 : errno;
  // Opening a folder succeeds; only reading it fails, without an error message.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    reason = EISDIR;
  }
  if (reason != 0) {
    throw ConfigError("cannot read the config file " + path.string() + ": " + std::generic_category().message(reason));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace detail
}  // namespace tessera
