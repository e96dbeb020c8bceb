#include "comm/watch/alarm.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>
#include <tessera/flight/recorder.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

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

namespace {

/// The status of a rank that did not answer. If its process is visible from here, this is the state of the process and,
/// with `with_record`, what the rank recorded.
flight::RankStatus unanswered(const JobKeys& keys, int rank, bool connection_broke, bool with_record) {
  flight::RankStatus status;
  status.rank = rank;
  const auto text = keys.store().try_get(keys.address(rank));
  if (!text) {
    status.condition = flight::RankCondition::kMissing;
    return status;
  }
  const RankAddress address = rank_address_from_json(*text);
  if (address.process_space != flight::process_space()) {
    // A process that ends closes its connections; a host that is cut off does not.
    status.condition = connection_broke ? flight::RankCondition::kDead : flight::RankCondition::kSilent;
    status.detail = "process " + std::to_string(address.process) + " on another host, at " + address.address;
    return status;
  }
  const flight::ProcessState state = flight::state_of_process(address.process);
  status.condition = state.condition;
  status.detail = state.detail;
  if (with_record) status.snapshot = flight::read_black_box(address.black_box);
  return status;
}

/// Whether the process of the rank has ended or is stopped, so that no answer will come.
bool cannot_answer(const JobKeys& keys, int rank) {
  const auto condition = unanswered(keys, rank, false, false).condition;
  return condition == flight::RankCondition::kDead || condition == flight::RankCondition::kStopped;
}

void wait_for_answers(const JobKeys& keys, int number, int size, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLookEvery{50};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) missing.push_back(rank);
  while (!missing.empty() && std::chrono::steady_clock::now() < deadline) {
    std::vector<std::string> expected;
    for (const int rank : missing) expected.push_back(keys.answer(number, rank));
    try {
      return keys.store().wait(expected, kLookEvery);
    } catch (const store::StoreTimeout&) {
      // The report also covers ranks that have not answered. Those that cannot answer are not waited for.
      std::erase_if(missing, [&](int rank) {
        return keys.store().check({keys.answer(number, rank)}) || cannot_answer(keys, rank);
      });
    }
  }
}

flight::RankStatus answered(int rank, const Answer& answer) {
  flight::RankStatus status;
  status.rank = rank;
  status.stack = answer.stack;
  status.snapshot = flight::snapshot_from_json(answer.snapshot);
  const CallRecord* const call = flight::current_call(*status.snapshot);
  // The call that failed and raised the alarm was waiting, too.
  const bool in_call = call != nullptr && (flight::is_waited_in(*call) || call->state == CallState::kFailed);
  status.condition = in_call ? flight::RankCondition::kWaiting : flight::RankCondition::kRunning;
  return status;
}

}  // namespace

flight::HangReport collect_report(const JobKeys& keys, int number, const Alarm& alarm, int size,
                                  std::chrono::milliseconds timeout) {
  wait_for_answers(keys, number, size, timeout);
  std::vector<std::optional<Answer>> answers;
  std::set<int> broken;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = keys.store().try_get(keys.answer(number, rank));
    answers.push_back(text ? std::optional(answer_from_json(*text)) : std::nullopt);
    if (text) broken.insert(answers.back()->lost.begin(), answers.back()->lost.end());
  }
  std::vector<flight::RankStatus> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const auto& answer = answers[static_cast<std::size_t>(rank)];
    ranks.push_back(answer ? answered(rank, *answer) : unanswered(keys, rank, broken.contains(rank), true));
  }
  return flight::analyse(alarm.trigger, alarm.fatal(), flight::now_ns(), size, std::move(ranks));
}

void publish(const flight::HangReport& report, int number, const std::string& folder) {
  const std::string text = flight::to_text(report);
  // In one write, because other ranks write to the same terminal.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  if (folder.empty()) return;
  const auto path = std::filesystem::path(folder) / ("hang_" + std::to_string(number) + ".json");
  std::ofstream file(path);
  file << flight::to_json(report);
  if (file.flush()) {
    std::fprintf(stderr, "tessera: this report as a file: tessera inspect hang %s\n", path.c_str());
  } else {
    std::fprintf(stderr, "tessera: the report cannot be written to %s\n", path.c_str());
  }
}

}  // namespace tessera::comm
