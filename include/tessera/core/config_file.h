#pragma once

#include <tessera/core/options.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

namespace detail {
void parse_config(std::string_view text, const std::string& origin, void* options, const FieldTable& fields);
std::string read_config(const std::filesystem::path& path);
std::string print_config(const void* options, const FieldTable& fields);
}  // namespace detail

/// Reads TOML onto `options`: keys that are absent keep their values. `origin` names the text in messages.
/// Strict: unknown keys, wrong types and values outside a field's choices are refused. Throws ConfigError with every
/// fault, one a line as `origin:line: fault`, and leaves `options` unchanged. Of malformed TOML only the first fault is
/// reported.
template <class T>
void parse_config(std::string_view text, const std::string& origin, T& options,
                  const FieldList<T>& fields = T::fields()) {
  T parsed = options;
  detail::parse_config(text, origin, &parsed, fields);
  options = std::move(parsed);
}

/// The same from a file. An unreadable file is a ConfigError too: the path is the user's.
template <class T>
void load_config(const std::filesystem::path& path, T& options, const FieldList<T>& fields = T::fields()) {
  parse_config(detail::read_config(path), path.string(), options, fields);
}

/// All fields as TOML, each under a comment with its help. Loads back to the same values.
/// Requires: strings are UTF-8, since TOML has nothing else.
template <class T>
std::string print_config(const T& options, const FieldList<T>& fields = T::fields()) {
  return detail::print_config(&options, fields);
}

/// A Markdown table of key, type, default and meaning, for the docs.
std::string reference_table(const FieldTable& fields);

}  // namespace tessera
