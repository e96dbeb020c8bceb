#pragma once

#include <tessera/core/options.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Insertions, deletions and replacements that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, the first of equals; none when all differ in more than half of their letters.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The full names of the tables that the fields lie in ("world", "world.retry"), in order of appearance; "" is left
/// out.
std::vector<std::string> section_names(const FieldTable& fields);

/// The part of a dotted key before its last dot ("" if there is none), and the part behind it.
std::string_view section_of(std::string_view key);
std::string_view leaf_of(std::string_view key);

/// What to say behind "unknown key": the nearest key or section, also when it lies in another section, else all keys
/// that are valid beside it.
std::string unknown_key_hint(const FieldTable& fields, std::string_view key);

}  // namespace tessera
