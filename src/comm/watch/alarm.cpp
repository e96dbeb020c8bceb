#include "comm/watch/alarm.h"

#include <tessera/core/error.h>

#include <nlohmann/json.hpp>

namespace tessera::comm {
namespace {

std::string dump(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Runs `read` on the parsed text; peers are trusted, but may be of another version.
template <typename Result, typename Read>
Result parse(std::string_view text, const char* what, Read read) {
  try {
    Result result;
    read(nlohmann::json::parse(text), result);
    return result;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(std::string("this is not ") + what + ": " + error.what());
  }
}

}  // namespace

std::string to_json(const Alarm& alarm) {
  return dump(
      {{"kind", static_cast<int>(alarm.kind)}, {"by", alarm.by}, {"about", alarm.about}, {"trigger", alarm.trigger}});
}

Alarm alarm_from_json(std::string_view text) {
  return parse<Alarm>(text, "an alarm", [](const nlohmann::json& object, Alarm& alarm) {
    const int kind = object.at("kind").get<int>();
    if (kind < 0 || kind > static_cast<int>(AlarmKind::kClosing)) throw ConfigError("an alarm of an unknown kind");
    alarm.kind = static_cast<AlarmKind>(kind);
    object.at("by").get_to(alarm.by);
    object.at("about").get_to(alarm.about);
    object.at("trigger").get_to(alarm.trigger);
  });
}

std::string to_json(const RankAddress& address) {
  return dump({{"address", address.address},
               {"port", address.port},
               {"process_space", address.process_space},
               {"process", address.process},
               {"black_box", address.black_box}});
}

RankAddress rank_address_from_json(std::string_view text) {
  return parse<RankAddress>(text, "the address of a rank", [](const nlohmann::json& object, RankAddress& address) {
    object.at("address").get_to(address.address);
    object.at("port").get_to(address.port);
    object.at("process_space").get_to(address.process_space);
    object.at("process").get_to(address.process);
    object.at("black_box").get_to(address.black_box);
  });
}

std::string to_json(const Answer& answer) {
  return dump({{"snapshot", answer.snapshot}, {"stack", answer.stack}, {"lost", answer.lost}});
}

Answer answer_from_json(std::string_view text) {
  return parse<Answer>(text, "an answer to an alarm", [](const nlohmann::json& object, Answer& answer) {
    object.at("snapshot").get_to(answer.snapshot);
    object.at("stack").get_to(answer.stack);
    object.at("lost").get_to(answer.lost);
  });
}

}  // namespace tessera::comm
