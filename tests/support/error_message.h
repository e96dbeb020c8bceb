#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::testing {

/// What `function` throws must be a `Kind`; returns its message, empty after any other outcome.
template <typename Kind, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "an error of another kind: " << other.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Says nothing about an empty text: `message_of` has then reported the fault.
inline void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    EXPECT_TRUE(text.empty() || text.find(part) != std::string::npos) << "\"" << part << "\" is missing in: " << text;
  }
}

}  // namespace tessera::testing
