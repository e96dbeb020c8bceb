#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include "core/duration.h"
#include "core/field_text.h"
#include "core/nearest_key.h"
#include "core/quoting.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <toml++/toml.h>

namespace tessera {
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
        // Taking it for a field would let a file set that field twice.
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
  // Opening a folder succeeds; only reading it fails, and without a word.
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
