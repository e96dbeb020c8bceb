#pragma once

#include <tessera/core/options.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// In double quotes, with the escapes that TOML requires.
std::string in_quotes(std::string_view text);

/// The items quoted, between commas: for messages.
std::string list_in_quotes(const std::vector<std::string>& items);

/// The items between commas, for flags; those that split_list() would misread are in double quotes.
std::string join_list(const std::vector<std::string>& items);

/// The inverse of join_list(). None for an open quote, text behind a closing one, and an empty item without quotes:
/// "a,,b" is a typing error.
std::optional<std::vector<std::string>> split_list(std::string_view text);

/// Insertions, deletions and replacements that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, the first of equals; none when all differ in more than half of their letters.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The full names of the tables of the fields ("world", "world.retry"), in order of appearance, without "".
std::vector<std::string> section_names(const FieldTable& fields);

/// The part of a dotted key before its last dot ("" if there is none), and the part behind it.
std::string_view section_of(std::string_view key);
std::string_view leaf_of(std::string_view key);

/// The text after "unknown key" in a message: the nearest key or section, which may lie in another section, else all
/// valid keys of the same section.
std::string unknown_key_hint(const FieldTable& fields, std::string_view key);

}  // namespace tessera
