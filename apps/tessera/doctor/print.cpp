#include "tessera/doctor/print.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace tessera::doctor {
namespace {

constexpr std::array kNames = {"ok", "warn", "fail"};

const char* name_of(Health health) { return kNames.at(static_cast<std::size_t>(health)); }

std::string padded(std::string text, std::size_t columns) {
  text.resize(std::max(text.size(), columns), ' ');
  return text;
}

std::string sum(const Checks& checks) {
  const auto count = [&](Health health) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.health == health; });
  };
  const auto fails = count(Health::kFail);
  const auto warnings = count(Health::kWarn);
  std::string text = fails == 0 ? "This machine is ready" : "This machine is not ready";
  if (fails > 0) text += "; " + std::to_string(fails) + (fails == 1 ? " check fails" : " checks fail");
  if (warnings > 0) text += "; " + std::to_string(warnings) + (warnings == 1 ? " warning" : " warnings");
  return text + ".\n";
}

}  // namespace

bool is_ready(const Checks& checks) {
  return std::none_of(checks.begin(), checks.end(), [](const Check& check) { return check.health == Health::kFail; });
}

std::string to_text(const Checks& checks) {
  constexpr std::size_t kHealthColumns = 6;
  constexpr std::size_t kNameColumns = 15;
  std::string text;
  for (const Check& check : checks) {
    text += padded(name_of(check.health), kHealthColumns) + padded(check.name, kNameColumns) + check.found;
    if (!check.advice.empty()) text += "; do: " + check.advice;
    text += "\n";
  }
  return text + sum(checks);
}

std::string to_json(const Checks& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back(
        {{"name", check.name}, {"status", name_of(check.health)}, {"found", check.found}, {"do", check.advice}});
  }
  const nlohmann::json object = {{"format", "tessera doctor 1"}, {"ready", is_ready(checks)}, {"checks", list}};
  return object.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::doctor
