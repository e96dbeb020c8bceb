#include <tessera/core/error.h>
#include <tessera/core/options.h>
#include "core/field_text.h"
#include "core/nearest_key.h"

#include <algorithm>
#include <limits>

namespace tessera {
namespace {

/// Keys are written without quotes in TOML and in flags.
bool is_plain_key(std::string_view key) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !key.empty() && key.front() != '.' && key.back() != '.' && key.find("..") == std::string_view::npos &&
         std::all_of(key.begin(), key.end(), is_plain);
}

/// A key that is also a table could not be written to a file.
bool collide(std::string_view a, std::string_view b) {
  return a == b || (a.starts_with(b) && a[b.size()] == '.') || (b.starts_with(a) && b[a.size()] == '.');
}

}  // namespace

std::string Field::type_name() const {
  switch (type()) {
    case FieldType::kBool:
      return "boolean";
    case FieldType::kInteger:
      return "integer";
    case FieldType::kNumber:
      return "number";
    case FieldType::kString:
      return "string";
    case FieldType::kDuration:
      return "duration";
    case FieldType::kStringList:
      return "list of strings";
    case FieldType::kIntegerList:
      return "list of integers";
  }
  throw InternalError("a field type without a name");
}

std::string Field::default_text() const { return field_text(default_value); }

const Field* FieldTable::find(std::string_view key) const {
  const auto found = std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

const Field& FieldTable::at(std::string_view key) const {
  const Field* field = find(key);
  if (!field) {
    throw ConfigError("unknown key " + in_quotes(key) + "; " + unknown_key_hint(*this, key));
  }
  return *field;
}

void FieldTable::append(Field field) {
  const std::string place = "the field list \"" + name_ + "\": ";
  if (!is_plain_key(field.key)) {
    throw InternalError(place + in_quotes(field.key) + " is no key of lower case letters, digits, '_' and '-'");
  }
  for (const Field& other : fields_) {
    if (collide(other.key, field.key)) {
      throw InternalError(place + in_quotes(field.key) + " collides with " + in_quotes(other.key));
    }
  }
  try {
    check_choice(field, field.default_value);
  } catch (const ConfigError& error) {
    throw InternalError(place + "the default of " + in_quotes(field.key) + ": " + error.what());
  }
  // Comments of config files and rows of Markdown tables end with the line.
  std::replace(field.help.begin(), field.help.end(), '\n', ' ');
  fields_.push_back(std::move(field));
}

std::string FieldTable::text_of(const void* options, std::string_view key) const {
  return field_text(at(key).get(options));
}

void FieldTable::assign_text(void* options, std::string_view key, std::string_view text) const {
  const Field& field = at(key);
  try {
    assign_field(field, options, parse_field_text(field.type(), text));
  } catch (const ConfigError& error) {
    throw ConfigError(field.key + ": " + error.what());
  }
}

void FieldTable::check_choices(const void* options) const {
  std::string faults;
  for (const Field& field : fields_) {
    try {
      check_choice(field, field.get(options));
    } catch (const ConfigError& error) {
      faults += (faults.empty() ? "" : "\n") + field.key + ": " + error.what();
    }
  }
  if (!faults.empty()) {
    throw ConfigError(faults);
  }
}

namespace detail {

const std::string& enum_name(const EnumNames& names, std::int64_t value) {
  for (const auto& [name, number] : names) {
    if (number == value) {
      return name;
    }
  }
  throw InternalError("the enumerator " + std::to_string(value) + " has no name in its field list");
}

std::int64_t enum_value(const EnumNames& names, const std::string& name) {
  for (const auto& [known, number] : names) {
    if (known == name) {
      return number;
    }
  }
  throw ConfigError("no enumerator is called " + in_quotes(name));
}

int narrow_to_int(std::int64_t value) {
  constexpr std::int64_t kMin = std::numeric_limits<int>::min();
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (value < kMin || value > kMax) {
    throw ConfigError("expected an integer from " + std::to_string(kMin) + " to " + std::to_string(kMax) + ", found " +
                      std::to_string(value));
  }
  return static_cast<int>(value);
}

}  // namespace detail
}  // namespace tessera
