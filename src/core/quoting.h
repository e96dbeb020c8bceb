#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// In double quotes, with what TOML wants escaped.
std::string in_quotes(std::string_view text);

/// The items quoted, between commas: for messages.
std::string list_in_quotes(const std::vector<std::string>& items);

/// The items between commas, for flags; those that split_list() would misread are in double quotes.
std::string join_list(const std::vector<std::string>& items);

/// The inverse of join_list(). None for an open quote, text behind a closing one, and an empty item without quotes:
/// "a,,b" is a slip of the hand.
std::optional<std::vector<std::string>> split_list(std::string_view text);

}  // namespace tessera
