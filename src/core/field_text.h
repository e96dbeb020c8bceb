#pragma once

#include <tessera/core/options.h>

#include <string>
#include <string_view>

namespace tessera {

/// What a flag says for `value`.
std::string field_text(const FieldValue& value);

/// The value of `type` that `text` says, as field_text() writes it. Throws ConfigError with what was expected and
/// found.
FieldValue parse_field_text(FieldType type, std::string_view text);

/// Checks the choices and stores. Throws ConfigError, without the key: callers know best how to point at the field.
void assign_field(const Field& field, void* options, const FieldValue& value);

/// Throws ConfigError as assign_field() does.
void check_choice(const Field& field, const FieldValue& value);

/// What a message expects: "an integer", "a list of strings".
std::string_view field_type_phrase(FieldType type);

/// Shortest text that reads back to the same number.
std::string number_text(double number);

}  // namespace tessera
